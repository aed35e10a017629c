"""How far ahead of the learner rollouts may run.

Staleness of a trajectory = version that consumes it − version of its oldest token, queue time
included. It is bounded by *admission*: at policy version n at most (n + 1 + α)·N groups have ever
been admitted, N groups making one batch. Then at most N unconsumed groups can have started at
version n − ⌈α⌉ or earlier, so a batch that takes those first never has to throw work away:
nothing is discarded for being old, and slow tasks are not starved.
Source: ROLL Flash (arXiv 2510.11345), the asynchronous ratio α, here without its aborts.
"""

from __future__ import annotations

import math
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

    def due(self, start_version: int, version: int) -> bool:
        """True if a group that began at `start_version` must be in the batch consumed at `version`,
        because at the next version it would be too stale."""
        return version + 1 - start_version > self.bound
