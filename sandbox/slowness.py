"""Fail-slow detection: which sandbox is much slower at the same work than its peers are at the same time (pure).

No threshold in seconds: a machine that is slow for everyone makes nobody slow. Logarithms of step
latencies are compared by medians, which single slow steps do not move, and the distance to the peers is
counted in robust deviations (MAD; Rousseeuw & Croux 1993), so that naturally scattered latencies ask
for more evidence. A suspicion needs several judgements in a row, and so does its end.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from statistics import median

NORMAL_MAD = 1.4826
"""MAD to standard deviation, for a normal distribution."""
MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, for a normal distribution: sqrt(pi / 2)."""
PEER_HISTORY = 16
"""A peer that is so many times as fast is still compared over the same stretch of time."""
LEAST_LATENCY_S = 1e-9


@dataclass(frozen=True)
class SlownessPolicy:
    """When slow is too slow."""

    samples: int = 16
    """A sandbox is judged by the median of its last so many steps, ..."""
    stride: int = 4
    """... after every so many new ones."""
    peers: int = 3
    """At least so many others with `stride` steps in the same stretch of time are needed to compare with."""
    deviations: float = 4.0
    """Slow is further above the median of the peers than so many robust deviations, ..."""
    ratio: float = 2.0
    """... and slower than they by this factor: a difference that is real may still not be worth a replacement."""
    recovery_ratio: float = 1.5
    """A suspect is cleared only below this factor."""
    confirmations: int = 2
    """Judgements in a row that it takes to suspect, and to clear."""


@dataclass(frozen=True)
class Suspected:
    member: Hashable
    ratio: float
    """Its median latency over its peers'."""
    deviations: float


@dataclass(frozen=True)
class Cleared:
    member: Hashable


@dataclass
class _History:
    steps: deque[tuple[float, float]]
    """(end of the step, logarithm of its latency), oldest first."""
    unjudged: int = 0
    votes: int = 0
    """Judgements in a row against the present state."""
    suspect: bool = False


@dataclass
class FailSlow:
    """Feed it every step of every member; it answers when its opinion of the member changes."""

    policy: SlownessPolicy = field(default_factory=SlownessPolicy)
    _histories: dict[Hashable, _History] = field(default_factory=dict, init=False)

    @property
    def suspects(self) -> frozenset[Hashable]:
        return frozenset(member for member, history in self._histories.items() if history.suspect)

    def forget(self, member: Hashable) -> None:
        """It is gone; a later one of the same name starts afresh."""
        self._histories.pop(member, None)

    def observe(self, member: Hashable, latency_s: float, now_s: float) -> Suspected | Cleared | None:
        """One step of a member that took `latency_s` and ended at `now_s`, any monotonic clock."""
        policy = self.policy
        history = self._histories.get(member)
        if history is None:
            history = self._histories[member] = _History(deque(maxlen=policy.samples * PEER_HISTORY))
        history.steps.append((now_s, math.log(max(latency_s, LEAST_LATENCY_S))))
        history.unjudged += 1
        if history.unjudged < policy.stride or len(history.steps) < policy.samples:
            return None
        history.unjudged = 0
        distance = self._distance(member)
        if distance is None:
            return None
        above, deviations = distance
        if history.suspect:
            against = above < math.log(policy.recovery_ratio)
        else:
            against = above > math.log(policy.ratio) and deviations > policy.deviations
        history.votes = history.votes + 1 if against else 0
        if history.votes < policy.confirmations:
            return None
        history.votes, history.suspect = 0, not history.suspect
        return Suspected(member, math.exp(above), deviations) if history.suspect else Cleared(member)

    def _distance(self, member: Hashable) -> tuple[float, float] | None:
        """How far above its peers: (difference of log medians, the same in robust deviations); None: too few peers."""
        own = list(self._histories[member].steps)[-self.policy.samples :]
        since_s = own[0][0]
        peers = []
        for other, history in self._histories.items():
            recent = [value for ended_s, value in history.steps if ended_s >= since_s]
            if other != member and len(recent) >= self.policy.stride:
                peers.append(recent)
        if len(peers) < self.policy.peers:
            return None
        middles = [median(values) for values in peers]
        centre = median(middles)
        between = NORMAL_MAD * median(abs(middle - centre) for middle in middles)
        # With few peers the spread between them is small by chance now and then; never below what the scatter of
        # single steps makes of a median of so few.
        within = NORMAL_MAD * median(
            abs(value - middle) for values, middle in zip(peers, middles, strict=True) for value in values
        )
        spread = max(between, MEDIAN_ERROR * within / math.sqrt(len(own)), 1e-9)
        above = median(value for _, value in own) - centre
        return above, above / spread
