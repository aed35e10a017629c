"""The lease that a node holds from the fleet: who is cut off ends its own sandboxes (pure).

A node that has not heard the fleet for `ttl_s` cannot know whether its sandboxes are still wanted, so it ends them; the
fleet takes what it cannot reach for gone only after that. A renewal names the deadline on the node's own clock,
reckoned from when it was sent: one that arrives late extends nothing. Clocks may run apart by `drift`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

ANSWERS_AGAIN = 2
"""Answers in a row after which a suspect node takes new sandboxes."""


@dataclass(frozen=True)
class NodePolicy:
    """How a node is watched."""

    interval_s: float = 1.0
    timeout_s: float = 2.0
    failures: int = 3
    """Pings missed in a row after which its lease is renewed no more, unless it answers again."""
    ttl_s: float = 30.0
    """A node that heard nothing for so long ends its sandboxes."""
    drift: float = 0.1
    """Share of `ttl_s` that is waited longer, for clocks that differ and for the killing."""

    def __post_init__(self) -> None:
        if not self.failures * (self.interval_s + self.timeout_s) < self.ttl_s:
            raise ValueError(
                f"ttl_s={self.ttl_s:g} is not longer than the {self.failures} pings of"
                f" {self.interval_s + self.timeout_s:g} s that a node may miss"
            )


class NodeLease:
    """The node's side. Times are the node's own."""

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self._over = False

    def renew(self, deadline_s: float, now_s: float) -> bool:
        """Extend it; False once it is over, for then it is over for good."""
        if not self.in_force(now_s):
            return False
        self.deadline_s = max(self.deadline_s, deadline_s)
        return True

    def in_force(self, now_s: float) -> bool:
        """Whether the node may go on."""
        self._over = self._over or now_s >= self.deadline_s
        return not self._over


class Standing(StrEnum):
    ACTIVE = "active"
    SUSPECT = "suspect"
    """It missed a ping: what it has goes on, nothing new is placed there."""
    LOST = "lost"
    """Its sandboxes are given up. It does not come back; the machine may, as another node."""


class NodeHealth:
    """The fleet's side of one node. Times are the fleet's own, but for deadlines, which are the node's."""

    def __init__(self, policy: NodePolicy, clock_s: float, answered_s: float) -> None:
        """The node's answer, here at `answered_s`, said that its clock was at `clock_s`; its lease, of a whole `ttl_s`,
        had begun by then."""
        self.policy = policy
        self.standing = Standing.ACTIVE
        self.misses = 0
        self._answers = ANSWERS_AGAIN
        self._ahead_s = clock_s - answered_s
        """How far the node's clock is ahead of ours at least."""
        self._renewed_s = answered_s
        self._deadline_s = clock_s

    def renewal(self, now_s: float) -> float:
        """The deadline to send with a ping at `now_s`; no later one than before while it does not answer."""
        if self.standing is not Standing.LOST and self.misses < self.policy.failures:
            self._renewed_s = max(self._renewed_s, now_s)
            self._deadline_s = self._renewed_s + self._ahead_s + self.policy.ttl_s
        return self._deadline_s

    def answered(self, clock_s: float, now_s: float) -> None:
        """A ping came back; the node's clock was at `clock_s` before `now_s`."""
        self._ahead_s = clock_s - now_s
        self.misses = 0
        self._answers += 1
        if self.standing is Standing.SUSPECT and self._answers >= ANSWERS_AGAIN:
            self.standing = Standing.ACTIVE

    def missed(self) -> None:
        """A ping did not come back in time."""
        self.misses += 1
        self._answers = 0
        if self.standing is Standing.ACTIVE:
            self.standing = Standing.SUSPECT

    def gone(self) -> None:
        """It is known to be gone, or taken for it."""
        self.standing = Standing.LOST

    @property
    def fenced_s(self) -> float:
        """From this time on nothing runs there any more, whether it can be reached or not."""
        return self._renewed_s + self.policy.ttl_s * (1.0 + self.policy.drift)

    def tick(self, now_s: float) -> None:
        """Its lease may have run out."""
        if now_s >= self.fenced_s:
            self.standing = Standing.LOST
