"""Redundant work over a fleet: an asyncio shell around `group.py` and `slowness.py`.

n sandboxes are leased and do the same work; the first m results are returned, the losers are cancelled
and their sandboxes recycled before `run` returns, however it ends. What goes wrong with a sandbox costs
a member and never the group; what goes wrong in the work itself ends the race and reaches the caller.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, Protocol, TypeVar

from rocknroll.sandbox.errors import (
    EnvCrashed,
    EnvHung,
    GroupFailed,
    LeaseLost,
    RuntimeUnavailable,
    SandboxLost,
    StartFailed,
)
from rocknroll.sandbox.group import Cancel, Fate, Group, Launch, Outcome
from rocknroll.sandbox.leased import LeasedSandbox
from rocknroll.sandbox.slowness import FailSlow, Suspected

T = TypeVar("T")
INFRASTRUCTURE = (SandboxLost, LeaseLost, EnvHung, EnvCrashed, StartFailed, RuntimeUnavailable)
"""Errors that say nothing about the work."""


class Lessor(Protocol):
    """The part of the fleet that a race needs."""

    async def lease(self, owner: str, ttl_s: float) -> LeasedSandbox: ...


class Race(Generic[T]):
    """One redundant group at work. `timeout_s` is for the whole of it, waiting for sandboxes included.

    With `slowness`, work that calls `step_took` after each of its steps has members replaced that are much slower
    than their peers; the detector may be shared by races over the same kind of work.
    """

    def __init__(
        self,
        fleet: Lessor,
        size: int,
        wanted: int,
        owner: str = "race",
        ttl_s: float = 60.0,
        timeout_s: float | None = None,
        replacements: int | None = None,
        slowness: FailSlow | None = None,
    ) -> None:
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        self.group = Group(size, wanted, replacements, deadline_s)
        self._fleet, self._owner, self._ttl_s = fleet, owner, ttl_s
        self._slowness = slowness
        self._members: dict[int, asyncio.Task[None]] = {}
        self._by_token: dict[int, int] = {}
        self._results: dict[int, T] = {}
        self._error: BaseException | None = None
        self._changed = asyncio.Event()

    async def run(self, work: Callable[[LeasedSandbox], Awaitable[T]]) -> list[T]:
        """The first `wanted` results, in the order in which they came.

        Raises:
            GroupFailed: too many members died, or the time is over.
            FleetExhausted, FleetClosed: no sandbox can be had any more.
            Exception: what the work itself raised.
        """
        try:
            self.group.start(time.monotonic())
            while True:
                self._carry_out(work)
                if self.group.outcome is not Outcome.OPEN:
                    break
                await self._wait()
        finally:
            for member, task in self._members.items():
                if self.group.fates[member] is not Fate.WON:
                    task.cancel()
            # A caller that is cancelled meanwhile still leaves no sandbox leased.
            await _all_ended(self._members.values())
        if self._error is not None:
            raise self._error
        if self.group.outcome is Outcome.FAILED:
            raise GroupFailed(self.group.reason)
        return [self._results[member] for member in self.group.winners]

    def step_took(self, sandbox: LeasedSandbox, latency_s: float) -> None:
        """Work tells how long one of its steps took; steps of members are comparable."""
        member = self._by_token.get(sandbox.token)
        if self._slowness is None or member is None:
            return
        now_s = time.monotonic()
        opinion = self._slowness.observe(sandbox.token, latency_s, now_s)
        if isinstance(opinion, Suspected):
            reason = f"its steps take {opinion.ratio:.1f} times as long as those of its peers"
            self.group.suspected(member, now_s, reason)
            self._changed.set()

    def _carry_out(self, work: Callable[[LeasedSandbox], Awaitable[T]]) -> None:
        for decision in self.group.take():
            match decision:
                case Launch(member):
                    self._members[member] = asyncio.create_task(self._member(member, work))
                case Cancel(member, _):
                    self._members[member].cancel()

    async def _wait(self) -> None:
        """Until a member reports, or the deadline."""
        deadline_s = self.group.deadline_s
        try:
            async with asyncio.timeout(None if deadline_s is None else max(0.0, deadline_s - time.monotonic())):
                await self._changed.wait()
        except TimeoutError:
            self.group.tick(time.monotonic())
        self._changed.clear()

    async def _member(self, member: int, work: Callable[[LeasedSandbox], Awaitable[T]]) -> None:
        try:
            sandbox = await self._fleet.lease(f"{self._owner}/{member}", self._ttl_s)
            self._by_token[sandbox.token] = member
            try:
                # An exception, a cancellation included, has the sandbox recycled.
                async with sandbox:
                    result = await work(sandbox)
                    if self.group.finished(member, time.monotonic()):
                        self._results[member] = result
            finally:
                del self._by_token[sandbox.token]
                if self._slowness is not None:
                    self._slowness.forget(sandbox.token)
        except INFRASTRUCTURE as lost:
            self.group.died(member, time.monotonic(), f"{lost.kind}: {lost}")
        except Exception as error:
            if self.group.outcome is Outcome.OPEN:
                self._error = error
                self.group.abandon(f"member {member} raised {error!r}")
        finally:
            self._changed.set()


async def _all_ended(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Wait for tasks, whatever becomes of this one, and be cancelled only afterwards."""
    waiting = asyncio.gather(*tasks, return_exceptions=True)
    cancelled: asyncio.CancelledError | None = None
    while not waiting.done():
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def race(
    fleet: Lessor,
    work: Callable[[LeasedSandbox], Awaitable[T]],
    n: int,
    m: int,
    owner: str = "race",
    ttl_s: float = 60.0,
    timeout_s: float | None = None,
) -> list[T]:
    """The first m results of `work` on n sandboxes (see `Race`, which can also replace slow members).

    Raises:
        GroupFailed, FleetExhausted, FleetClosed, Exception: see `Race.run`.
    """
    return await Race[T](fleet, n, m, owner, ttl_s, timeout_s).run(work)
