"""Fail-slow detection: which sandbox is much slower at the same work than its peers are at the same time (pure).

No threshold in seconds: each step is kept together with what its peers' last steps took at that moment,
so that a machine that is slow for everyone makes nobody slow. The comparison is by ranks (Wilcoxon
1945), its size by the median of pairwise ratios (Hodges & Lehmann 1963), and it has to stand out among
the peers' own by robust deviations (median and MAD): single slow steps, heavy tails, several kinds of
steps and sandboxes that naturally differ ask for more evidence. Two judgements in a row make a suspicion.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from statistics import median

NORMAL_MAD = 1.4826
"""MAD to standard deviation, for a normal distribution."""
REFERENCES = 8
"""Peers that a step is kept together with, in turn: more cost time and tell nothing new."""
QUANTILES = 64
"""Pairwise ratios are formed with so many values at most."""
IDLE_GAPS = 8
"""A peer that ended no step for so many times its usual pause is idle: its last step belongs to another time."""
LEAST_LATENCY_S = 1e-9


@dataclass(frozen=True)
class SlownessPolicy:
    """When slow is too slow."""

    samples: int = 32
    """A sandbox is judged by its last so many steps, ..."""
    least: int = 16
    """... once it has so many, ..."""
    stride: int = 4
    """... after every so many new ones."""
    peers: int = 3
    """At least so many others at work are needed to compare with."""
    deviations: float = 4.0
    """Slow is further from the peers than so many standard deviations of chance, and of their own differences, ..."""
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
    """How many times as long as its peers' its steps take."""
    deviations: float
    """How far that is from chance, in standard deviations of the rank sum."""


@dataclass(frozen=True)
class Cleared:
    member: Hashable


@dataclass
class _History:
    steps: deque[tuple[float, list[float]]]
    """(logarithm of the latency, those of its peers' last steps at its end), oldest first."""
    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=IDLE_GAPS))
    """Seconds from one end of a step to the next."""
    ended_s: float = -math.inf
    latest: float = 0.0
    count: int = 0
    shift: float | None = None
    """How far it was above its peers when it was last judged (logarithm of a ratio)."""
    votes: int = 0
    """Judgements in a row against the present opinion."""
    suspect: bool = False

    def at_work(self, now_s: float) -> bool:
        return bool(self.gaps) and now_s - self.ended_s <= IDLE_GAPS * median(self.gaps)


@dataclass
class FailSlow:
    """Feed it every step of every member; it answers when its opinion of that member changes."""

    policy: SlownessPolicy = field(default_factory=SlownessPolicy)
    _histories: dict[Hashable, _History] = field(default_factory=dict, init=False)

    @property
    def suspects(self) -> frozenset[Hashable]:
        return frozenset(member for member, history in self._histories.items() if history.suspect)

    def forget(self, member: Hashable) -> None:
        """It is gone; a later one of the same name starts afresh."""
        self._histories.pop(member, None)

    def observe(self, member: Hashable, latency_s: float, now_s: float) -> Suspected | Cleared | None:
        """One step of a member that took `latency_s` and ended at `now_s`, of any monotonic clock."""
        policy = self.policy
        history = self._histories.get(member)
        if history is None:
            history = self._histories[member] = _History(deque(maxlen=policy.samples))
        if history.count:
            history.gaps.append(now_s - history.ended_s)
        history.ended_s, history.count = now_s, history.count + 1
        history.latest = math.log(max(latency_s, LEAST_LATENCY_S))
        references = self._references(member, now_s, turn=history.count)
        if len(references) < policy.peers:
            return None
        history.steps.append((history.latest, references))
        if len(history.steps) < policy.least or history.count % policy.stride:
            return None
        return self._judge(member, history)

    def _references(self, member: Hashable, now_s: float, turn: int) -> list[float]:
        """What the last steps of some peers took that are at work now, other peers each time."""
        others = [history for name, history in self._histories.items() if name != member]
        start = turn * REFERENCES % max(1, len(others))
        chosen = (others[start:] + others[:start])[:REFERENCES]
        return [history.latest for history in chosen if history.at_work(now_s)]

    def _judge(self, member: Hashable, history: _History) -> Suspected | Cleared | None:
        policy = self.policy
        own = [latency for latency, _ in history.steps]
        peers = sorted(latency for _, references in history.steps for latency in references)
        chance = rank_deviations(own, peers)
        shift = history.shift = pairwise_shift(own, peers)
        if history.suspect:
            against = shift < math.log(policy.recovery_ratio)
        else:
            against = shift > math.log(policy.ratio) and chance > policy.deviations and self._stands_out(member, shift)
        history.votes = history.votes + 1 if against else 0
        if history.votes < policy.confirmations:
            return None
        history.votes, history.suspect = 0, not history.suspect
        return Suspected(member, math.exp(shift), chance) if history.suspect else Cleared(member)

    def _stands_out(self, member: Hashable, shift: float) -> bool:
        """Whether the peers differ so little among themselves that this difference is none of theirs."""
        shifts = [
            history.shift
            for name, history in self._histories.items()
            if name != member and history.shift is not None and not history.suspect
        ]
        if len(shifts) < self.policy.peers:
            return False
        centre = median(shifts)
        spread = NORMAL_MAD * median(abs(other - centre) for other in shifts)
        return shift - centre > self.policy.deviations * spread


def rank_deviations(own: list[float], peers: list[float]) -> float:
    """The rank sum of `own` among `peers` (sorted), in standard deviations from that of equals (Wilcoxon 1945)."""
    above = sum(0.5 * (bisect_left(peers, value) + bisect_right(peers, value)) for value in own)
    n, m = len(own), len(peers)
    return (above - n * m / 2) / math.sqrt(n * m * (n + m + 1) / 12)


def pairwise_shift(own: list[float], peers: list[float]) -> float:
    """The median difference over all pairs (Hodges & Lehmann 1963), `peers` (sorted) thinned to their quantiles."""
    step = max(1.0, len(peers) / QUANTILES)
    thinned = [peers[int(step * (index + 0.5))] for index in range(int(len(peers) / step))]
    return median(mine - other for mine in own for other in thinned)
