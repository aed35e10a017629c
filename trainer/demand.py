"""What roles ask of a Ray cluster, and what it lacks of that, in words. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Bundle = Mapping[str, float]


@dataclass(frozen=True)
class Demand:
    """What one role asks of a cluster."""

    role: str
    bundles: Sequence[Bundle]
    """Resources of each of its processes."""


def learner_demand(ranks: int, *, gpus: bool, own_node: str) -> Demand:
    """A core for each rank, and an accelerator where they compute on one; rank 0 on this process's node."""
    each: dict[str, float] = {"CPU": 1.0, **({"GPU": 1.0} if gpus else {})}
    return Demand("learner", [{**each, own_node: 0.001}, *(each for _ in range(ranks - 1))])


def missing(demands: Sequence[Demand], there: Mapping[str, float]) -> str:
    """What the roles together lack of what is `there`, by role, as a sentence; empty when it is enough.

    Roles are served in their order, so the last ones lack.
    """
    left, lacking = dict(there), list[str]()
    for demand in demands:
        names = {name for bundle in demand.bundles for name in bundle if not name.startswith("node:")}
        for name in sorted(names):
            wanted = sum(bundle.get(name, 0.0) for bundle in demand.bundles)
            has = left.get(name, 0.0)
            if wanted > has:
                lacking.append(
                    f"{demand.role}: {wanted:g} {name} for {len(demand.bundles)} processes, {has:g} left of"
                    f" {there.get(name, 0.0):g}, {wanted - has:g} missing"
                )
            left[name] = max(0.0, has - wanted)
    return "; ".join(lacking)


def first_line(failure: Exception) -> str:
    """Of an error's text that says most: the last of a remote traceback, the first of all others."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()] or [type(failure).__name__]
    return lines[-1] if "ray::" in lines[0] else lines[0]
