"""How far ahead of the learner rollouts may run, and which groups can still be trained on in time.

Batch k is what policy version k trains on. Staleness of a trajectory = k − version of its oldest token,
queue time included; a group whose oldest token is of version s is *due* at s + ⌈α⌉. Two rules bound it.
*Admission*: at version n at most ⌊(n + 1 + α)·N⌋ groups were admitted, N groups making one batch.
*Earliest deadline first*: batches k…d hold N·(d − k + 1) groups; once the groups that are certain to take
them fill all of these places, no other group due by d can be trained on in time, so it loses now.
Source: ROLL Flash (arXiv 2510.11345) for the asynchronous ratio α; the exact time of the abort is ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Pacing:
    """The rules for batches of `num_groups` groups at asynchronous ratio `async_ratio`."""

    num_groups: int
    async_ratio: float
    last_batch: int | None = None
    """Index of the run's last batch: nothing is admitted for which there is no batch any more."""

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

    def front(self, version: int, batch: int) -> int:
        """First version from `version` on at which an episode may start while `batch` is being collected.

        A synchronous run starts nothing for a batch before its version is there; an asynchronous one may be one
        version behind, while the learner trains on the batch before. A learner that is further behind was set back
        to a checkpoint and is being handed batches that were taken already.
        """
        return max(version, batch - min(self.bound, 1))

    def places(self, version: int, batch: int) -> int:
        """Groups that may be admitted and not yet taken; never more than ⌊(1 + α)·N⌋."""
        ahead = self.quota(self.front(version, batch)) - batch * self.num_groups
        return ahead if self.last_batch is None else min(ahead, self._capacity(batch, self.last_batch))

    def closed(self, certain: Sequence[int], version: int, batch: int) -> int:
        """The last version d such that no other group due by d can be trained on in time.

        `certain`: when the groups are due that are complete or whose place is reserved.
        """
        last = self.front(version, batch) + self.bound
        if len(certain) >= self.places(version, batch):
            return last
        full = (d for d in range(last, batch - 1, -1) if sum(due <= d for due in certain) >= self._capacity(batch, d))
        return next(full, batch - 1)

    def must_wait(self, unfinished: Sequence[int], left: Sequence[int], batch: int) -> bool:
        """True if `batch` has to wait for an unfinished group with a reserved place.

        `unfinished`: when the groups with a reserved place are due; `left`: the same of the complete groups
        that this batch would leave behind. It waits if they cannot all be trained on after it.
        """
        everyone = (*unfinished, *left)
        return any(
            any(due <= d for due in unfinished) and sum(due <= d for due in everyone) > self._capacity(batch + 1, d)
            for d in set(everyone)
        )

    def _capacity(self, first: int, last: int) -> int:
        """Groups that the batches from `first` to `last` hold."""
        return self.num_groups * max(0, last - first + 1)
