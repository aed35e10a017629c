"""How far ahead of the learner rollouts may run.

Staleness of a trajectory = version that consumes it − version of its oldest token, queue time
included. It is bounded by *admission*: at policy version n at most (n + 1 + α)·N groups have been
admitted, N groups making one batch. So at most (1 + α)·N are open at once, and a batch that leaves
behind only what later batches can still take in time never has to throw work away: nothing is
discarded for being old, and slow tasks are not starved.
Source: ROLL Flash (arXiv 2510.11345), the asynchronous ratio α, here without its aborts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Pacing:
    """Admission rule for batches of `num_groups` groups at asynchronous ratio `async_ratio`."""

    num_groups: int
    async_ratio: float

    def __post_init__(self) -> None:
        if self.num_groups < 1:
            raise ValueError(f"num_groups is {self.num_groups}; a batch needs at least one group")
        if not (math.isfinite(self.async_ratio) and self.async_ratio >= 0):
            raise ValueError(f"async_ratio is {self.async_ratio}; it is a finite number ≥ 0")

    @property
    def bound(self) -> int:
        """Largest staleness, in whole policy versions, that a consumed trajectory can have."""
        return math.ceil(self.async_ratio)

    def quota(self, version: int) -> int:
        """Groups that may have been admitted since the start of the run while `version` is current."""
        return math.floor((version + 1 + self.async_ratio) * self.num_groups + 1e-9)

    def may_wait(self, starts: Sequence[int], version: int) -> bool:
        """True if groups that began at the versions `starts` can all wait for batches after `version`.

        Earliest-deadline-first feasibility: a group that began at v is due at v + bound, and the
        batches up to a deadline d hold N·(d − version) groups.
        """
        return all(
            sum(start + self.bound <= deadline for start in starts) <= self.num_groups * (deadline - version)
            for deadline in range(version, version + self.bound)
        )
