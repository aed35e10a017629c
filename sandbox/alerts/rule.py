"""What an alert is, and the rule that raises it: data, with nothing in it that looks at a fleet or a run.

A rule compares one figure with a threshold. Its condition must hold for `for_s` before an alert is raised, and must
have been over for `clear_s` before it is resolved. Imports nothing heavy.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import Field, FiniteFloat, NonNegativeFloat

from rocknroll.sandbox.spec import Model

Severity = Literal["warning", "critical"]
"""`warning`: something is lost or slow, and the work goes on; `critical`: work stands still, or is about to be lost."""

DETAIL_CHARS = 400
"""Of what a reading tells besides its figure: it may be the last words of a program."""


class Rule(Model):
    """When to raise an alert, and what it says.

    `what` and `remedy` are texts in which `{subject}`, `{value}`, `{threshold}` and `{detail}` stand for what was read.
    """

    name: str = Field(pattern=r"^[a-z][a-z_]*$")
    reads: str
    """What its figure is, unit included."""
    threshold: FiniteFloat
    """The condition holds from this figure on, ..."""
    below: bool = False
    """... or, with this, down from it."""
    margin: NonNegativeFloat = 0.0
    """Share of the threshold by which a figure must have come back before the condition is over."""
    for_s: NonNegativeFloat = 0.0
    """How long the condition must hold before an alert is raised."""
    clear_s: NonNegativeFloat = 60.0
    """How long it must have been over before the alert is resolved."""
    severity: Severity = "warning"
    enabled: bool = True
    what: str
    """What happened."""
    why: str
    """Why it matters, or what it comes from."""
    remedy: str
    """What to do about it."""

    def holds(self, value: float, raised: bool) -> bool:
        """Whether `value` meets the condition; one that has `raised` an alert is over only beyond the margin."""
        margin = abs(self.threshold) * self.margin if raised else 0.0
        return value <= self.threshold + margin if self.below else value >= self.threshold - margin

    def changed(self, change: RuleChange) -> Rule:
        """The rule as the configuration wants it."""
        return self.model_copy(update=change.model_dump(exclude_none=True))

    def text(self, reading: Reading) -> str:
        """The alert's paragraph: what happened, why, what to do."""
        told = "".join(char if char.isprintable() else " " for char in reading.detail)
        detail = told if len(told) <= DETAIL_CHARS else told[: DETAIL_CHARS - 1] + "…"
        filled = {"subject": reading.subject, "value": reading.value, "threshold": self.threshold, "detail": detail}
        return f"{self.what.format_map(filled)} {self.why} {self.remedy.format_map(filled)}"


class RuleChange(Model):
    """What a configuration changes about a rule; None leaves a field as it is."""

    enabled: bool | None = None
    """false silences the rule."""
    threshold: FiniteFloat | None = None
    for_s: NonNegativeFloat | None = None
    clear_s: NonNegativeFloat | None = None
    severity: Severity | None = None


@dataclass(frozen=True)
class Reading:
    """One look at what a rule reads."""

    rule: str
    subject: str
    """What it is about: a sandbox's id, a pool, a folder, `run`."""
    value: float
    detail: str = ""
    """What the alert's text says besides the figure."""


@dataclass(frozen=True)
class Alert:
    """One time that a rule's condition held. Times are seconds since the epoch."""

    rule: str
    subject: str
    severity: Severity
    since: float
    """When the condition began to hold."""
    text: str
    """What happened, why, and what to do, as one paragraph."""
    resolved: float | None = None
    """When it was over; None while it is not."""

    def to_json(self) -> dict[str, Any]:
        """As it goes over the wire and into files."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Alert:
        """What `to_json` gave; keys of later versions are left alone."""
        return cls(**{name: data[name] for name in cls.__dataclass_fields__})
