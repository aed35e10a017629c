"""Leases: who may use a sandbox, until when, and the fencing token that proves it (pure).

A token only grows, over all sandboxes and all starts, and the agent inside the sandbox refuses a
lower one. Only the holder extends a deadline, by a heartbeat that carries its token; looking at a
lease never renews it, and an expired lease cannot be revived.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from rocknroll.sandbox.errors import LeaseLost


@dataclass(frozen=True)
class Lease:
    """Times are seconds of one monotonic clock, the fleet's."""

    id: str
    sandbox_id: str
    owner: str
    token: int
    ttl_s: float
    granted_s: float
    heartbeat_s: float

    @property
    def deadline_s(self) -> float:
        """The lease is over at this time."""
        return self.heartbeat_s + self.ttl_s

    def expired(self, now_s: float) -> bool:
        return now_s >= self.deadline_s


class Tokens:
    """The source of fencing tokens; `remember` makes each one durable before it is given out, or refuses by raising."""

    def __init__(self, last: int = 0, remember: Callable[[int], None] = lambda token: None) -> None:
        self._last, self._remember = last, remember

    def next(self) -> int:
        """A token greater than every one before."""
        self._remember(self._last + 1)
        self._last += 1
        return self._last


def grant(tokens: Tokens, sandbox_id: str, owner: str, ttl_s: float, now_s: float) -> Lease:
    """A new lease with a new token."""
    token = tokens.next()
    return Lease(f"lease-{token}", sandbox_id, owner, token, ttl_s, granted_s=now_s, heartbeat_s=now_s)


def heartbeat(current: Lease | None, token: int, now_s: float, ttl_s: float | None = None) -> Lease:
    """The lease extended by its holder, optionally with another time to live.

    Raises:
        LeaseLost: nobody holds the sandbox, someone else does, or the deadline has passed.
    """
    if current is None or current.token != token:
        raise LeaseLost(f"token {token} holds no lease" + (f"; {current.owner} does" if current else ""))
    if current.expired(now_s):
        raise LeaseLost(
            f"the lease of {current.owner} on {current.sandbox_id} expired {now_s - current.deadline_s:.1f} s ago"
        )
    return replace(current, heartbeat_s=now_s, ttl_s=current.ttl_s if ttl_s is None else ttl_s)
