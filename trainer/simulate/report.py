"""What a simulated run showed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class BatchReport:
    """One batch, as the learner got it; the tuples hold one entry for each trajectory."""

    index: int
    taken_s: float
    """Time at which it was handed out."""
    waited_s: float
    """For how long the learner had to wait for it."""
    groups: tuple[str, ...]
    staleness: tuple[int, ...]
    """Consuming version − oldest token's version."""
    turns: tuple[int, ...]
    rewards: tuple[float, ...]
    round_kind: str


@dataclass(frozen=True)
class Report:
    """A whole run, up to the end of the last batch's training."""

    batches: tuple[BatchReport, ...]
    elapsed_s: float
    environment_utilisation: float
    """Share of the time in which an environment slot played an episode, 0 to 1."""
    engine_utilisation: float
    """Share of the time in which an engine slot decoded, 0 to 1."""
    events: Mapping[str, int]
    """The scheduler's events by name: `Started`, `Kept`, `Aborted`, …"""

    @property
    def batch_s(self) -> float:
        """Mean time from one batch to the next, training included."""
        return self.elapsed_s / len(self.batches)

    @property
    def learner_waited_s(self) -> float:
        """For how long the learner waited in all."""
        return sum(batch.waited_s for batch in self.batches)

    @property
    def max_staleness(self) -> int:
        """The oldest that any token was."""
        return max(max(batch.staleness) for batch in self.batches)

    @property
    def mean_staleness(self) -> float:
        """Mean over all trajectories."""
        return float(np.mean([age for batch in self.batches for age in batch.staleness]))
