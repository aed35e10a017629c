"""The part of a recipe that says which machines there are and who computes where. Imports nothing heavy."""

from __future__ import annotations

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from rocknroll.trainer.section import Section


class DevicesSection(Section):
    """Accelerators of the roles that compute with a model: a number of them, or which (`0-3`, `0,2,4-7`).

    Devices are counted through: those of the first node, then those of the second. Roles that name the same devices
    share them. Numbers are handed out in the order learner, engine, from what nobody names.
    """

    learner: PositiveInt | str | None = None
    """One rank on each; None: the CPU."""
    engine: PositiveInt | str | None = None
    """Replicas side by side, each on as many as it splits its weights over; None: the CPU."""

    @field_validator("learner", "engine")
    @classmethod
    def _is_a_list_of_ranges(cls, given: int | str | None) -> int | str | None:
        if isinstance(given, str):
            named_devices(given)
        return given

    @property
    def any(self) -> bool:
        """Whether a role asks for an accelerator."""
        return self.learner is not None or self.engine is not None


class ClusterSection(Section):
    """Where the roles of a run are."""

    address: str | None = None
    """A Ray cluster: `host:port`, `auto` or `local` (this machine alone). Unless given, the one of `$RAY_ADDRESS`, else
    the one that `ray start` began here, else this machine alone (`sandbox/cluster.py`)."""
    nodes: PositiveInt = 1
    gpus_per_node: NonNegativeInt = 0
    gpu_memory_gib: PositiveFloat | None = None
    """Memory of one accelerator; needed to say whether a role fits."""
    devices: DevicesSection = Field(default_factory=DevicesSection)


def named_devices(text: str) -> tuple[int, ...]:
    """The devices that `0-3,6` names, ascending.

    Raises:
        ValueError: it is not of that form, or names one twice.
    """
    found: list[int] = []
    for part in text.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
            raise ValueError(
                f"{text!r} does not name devices: write a number of them, or which, as in `0-3` or `0,2,4-7`"
            )
        found += range(int(first), int(last or first) + 1)
    if twice := sorted({device for device in found if found.count(device) > 1}):
        raise ValueError(f"{text!r} names {', '.join(map(str, twice))} twice")
    return tuple(sorted(found))


def device_count(given: int | str | None) -> int:
    """How many devices a role asks for."""
    if given is None:
        return 0
    return given if isinstance(given, int) else len(named_devices(given))
