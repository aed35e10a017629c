"""What a holder asks of its sandbox, in figures for those who look: when last, at which step, how long answers took.

One for each lease, so that nothing of an earlier holder is seen; looking changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

KEPT = 16
"""Answers whose time is remembered, of each lease."""
WORK = frozenset({"exec", "session.run", "env.step"})
"""Requests that a command or an environment works on; files and the rest say little of how a sandbox fares."""


@dataclass
class Activity:
    """Times are of the monotonic clock."""

    last_s: float | None = None
    """When something was last asked."""
    steps: int | None = None
    """Of the episode that is played; None where no environment was asked."""
    took_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    """How long the last pieces of work took."""

    def asked(self, op: str, now_s: float) -> None:
        """A request goes out."""
        self.last_s = now_s
        if op == "env.reset":
            self.steps = 0
        elif op == "env.step":
            self.steps = (self.steps or 0) + 1

    def answered(self, op: str, asked_s: float, now_s: float) -> None:
        """Its reply, or its failure, has come."""
        self.last_s = now_s
        if op in WORK:
            self.took_s.append(now_s - asked_s)


def quantiles(values_s: Sequence[float]) -> dict[str, float] | None:
    """How many, median and 95th percentile (nearest rank); None of nothing."""
    if not values_s:
        return None
    ordered = sorted(values_s)
    p50_s, p95_s = (ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.95))
    return {"count": len(ordered), "p50_s": p50_s, "p95_s": p95_s}
