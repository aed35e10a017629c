"""The fleet: an asyncio shell around the pure pool.

Carries the pool's decisions out (starts, kills, probes), feeds back what happened, hands READY
sandboxes to waiting callers in order, and records every event. When it is closed nothing is left;
when its process is killed, the next fleet on the same store takes over what still runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rocknroll.sandbox import owner as processes
from rocknroll.sandbox.activity import Activity
from rocknroll.sandbox.decisions import Decision, Discard, Note, Probe, Revoke, Start
from rocknroll.sandbox.errors import (
    FleetClosed,
    FleetExhausted,
    LeaseLost,
    LeaseTimeout,
    SandboxError,
    SpecInvalid,
    StoreFailed,
)
from rocknroll.sandbox.holders import Holders
from rocknroll.sandbox.instances import Instances
from rocknroll.sandbox.lease import Lease
from rocknroll.sandbox.leased import LeasedSandbox
from rocknroll.sandbox.ledger import Ledger, lease_again
from rocknroll.sandbox.lifecycle import Event, State
from rocknroll.sandbox.live import Live, instance_id
from rocknroll.sandbox.pool import Member, Pool
from rocknroll.sandbox.runtimes.base import Instance, Runtime
from rocknroll.sandbox.spec import SandboxSpec
from rocknroll.sandbox.store import EventRow, LeaseRow, SandboxRow, Store
from rocknroll.sandbox.view import describe

STARTS_PER_CORE = 2
"""More starts at once gain nothing, they only make each other late."""
STORE_RETRY_S = 1.0


@dataclass
class _Waiter:
    owner: str
    ttl_s: float
    pid: int | None
    sandbox_id: str | None = None
    """Wants this one only."""
    lease: asyncio.Future[Lease] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Fleet:
    """A pool of sandboxes of one spec. Use as an async context manager.

    Args:
        size: how many sandboxes there are at most.
        ready: keep as many READY beyond those that are leased; None keeps all `size` up.
        store: a path or a Store; None keeps the record in memory.
        max_starting: how many start at once.
        owns_runtime: False leaves the runtime open at the end, for several fleets on one. Who opens it then also calls
            `adopt` of each fleet, and `Runtime.sweep` with what they took over, before they are entered.
    """

    def __init__(
        self,
        spec: SandboxSpec,
        size: int,
        runtime: Runtime,
        store: Store | Path | str | None = None,
        max_starting: int | None = None,
        owns_runtime: bool = True,
        ready: int | None = None,
    ) -> None:
        _check_size(size, ready)
        self.spec, self.runtime = spec, runtime
        self._owns_store = not isinstance(store, Store)
        self._store = store if isinstance(store, Store) else Store(":memory:" if store is None else store)
        limit = max_starting or STARTS_PER_CORE * len(os.sched_getaffinity(0))
        self._ledger = Ledger(self._store, spec, runtime.node)
        self._pool = Pool(spec, size, limit, tokens=self._store.tokens, ready=ready)
        self._instances = Instances(runtime, spec, self._pool, self._settle)
        self._owns_runtime = owns_runtime
        self._adopted = False
        self._holders = Holders(self._owner_died)
        self._waiters: deque[_Waiter] = deque()
        self._wakeup = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False
        self._counts: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        """Take over what an earlier manager left, then begin to start sandboxes in the background.

        Raises:
            RuntimeUnavailable: what was left cannot be looked for.
            StoreFailed: the record cannot be read or written.
        """
        if not self._adopted:
            kept = await self.adopt()
            if self._owns_runtime:
                await self.runtime.sweep(kept)
        self._keeper = asyncio.create_task(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def adopt(self) -> set[str]:
        """Take over what an earlier manager on the same store left; returns the ids of the instances that still run.

        Leases on them go on under their tokens, with a full time to live from now, for nobody could renew them
        meanwhile; `held` has them. Those of holders whose process is dead, or whose sandbox is gone, are ended.
        """
        self._adopted = True
        rows = self._store.sandboxes(self.spec.name)
        leases = {row.sandbox_id: row for row in self._store.open_leases()}
        known = [row for row in rows if row.id in self._pool.members]
        for row in known:
            quarantined = row.state == State.QUARANTINED and row.spec == self.spec.fingerprint
            self._pool.remember(row.id, row.generation, row.restarts, row.last_error, quarantined)
        found = await asyncio.gather(*(self._instances.take_over(row) for row in known))
        kept = set()
        for row, live in zip(known, found, strict=True):
            if live is not None:
                self._go_on(row, live, leases.pop(row.id, None))
                kept.add(instance_id(row.id, row.generation))
        for row in rows:
            if row.id in leases:
                self._ledger.end_lease(leases[row.id].token, "its sandbox did not outlive the manager")
                self._ledger.event(row.id, "lease_lost", leases[row.id].owner)
            if row.id not in self._pool.members:
                self._ledger.sandbox(row.id, None, None)
        return kept

    async def lease(
        self,
        owner: str,
        ttl_s: float = 60.0,
        timeout_s: float | None = None,
        heartbeats: bool = True,
        owner_pid: int | None = None,
    ) -> LeasedSandbox:
        """Wait for a READY sandbox, first come first served.

        Args:
            heartbeats: the holder is this process, and the lease renews itself until released.
            owner_pid: end the lease when this process of this machine does.

        Raises:
            FleetExhausted: no sandbox can ever become READY.
            FleetClosed: the fleet was closed.
            LeaseTimeout: none was READY within `timeout_s`.
            StoreFailed: the lease could not be recorded, and so was not given.
        """
        pid = os.getpid() if heartbeats else owner_pid
        try:
            async with asyncio.timeout(timeout_s):
                sandbox = None
                first = False
                while sandbox is None:
                    lease = await self._wait(_Waiter(owner, ttl_s, pid), first)
                    sandbox = await self._hand_over(lease, heartbeats, pid)
                    first = True
                return sandbox
        except TimeoutError:
            states = Counter(member.state.value for member in self._pool.members.values())
            raise LeaseTimeout(f"no sandbox was READY within {timeout_s} s; states: {dict(states)}") from None

    async def lease_one(
        self, sandbox_id: str, owner: str, ttl_s: float = 60.0, owner_pid: int | None = None
    ) -> LeasedSandbox:
        """Lease this very sandbox, at once and before those who wait; its holder sends the heartbeats.

        Raises:
            LeaseTimeout: it is not READY; the text says what it is. StoreFailed: see `lease`.
        """
        waiter = _Waiter(owner, ttl_s, owner_pid, sandbox_id)
        sandbox = await self._hand_over(await waiter.lease, False, owner_pid) if self._serve(waiter) else None
        self._settle()
        if sandbox is None:
            member = self._pool.members.get(sandbox_id)
            holder = f", held by {member.lease.owner}" if member is not None and member.lease is not None else ""
            state = "gone" if member is None else member.state.value
            raise LeaseTimeout(f"{sandbox_id} cannot be leased: it is {state}{holder}")
        return sandbox

    def heartbeat(self, lease: Lease, ttl_s: float | None = None) -> Lease:
        """Extend a lease; `LeasedSandbox.heartbeat` is the holder's way.

        Raises:
            LeaseLost: it is over.
        """
        extended = self._pool.heartbeat(lease.sandbox_id, lease.token, time.monotonic(), ttl_s)
        self._ledger.extend_lease(extended)
        return extended

    def held(self, token: int) -> LeasedSandbox:
        """What a lease that is in force entitles to; for holders that only have its token.

        Raises:
            LeaseLost: it is over, or never was.
        """
        sandbox = self._holders.get(token)
        if sandbox is None:
            row = self._store.lease(token)
            why = "was never given" if row is None else f"is over: {row.outcome or 'lost'}"
            raise LeaseLost(f"the lease with token {token} {why}")
        return sandbox

    async def release(self, lease: Lease, recycle: bool) -> None:
        """End a lease; `LeasedSandbox.release` is the holder's way. A lease that is over already is left alone."""
        try:
            self._pool.release(lease.sandbox_id, lease.token, time.monotonic(), recycle)
        except LeaseLost:
            return
        self._end_lease(lease.token, "recycled" if recycle else "released")
        self._settle()

    def scale(self, size: int, ready: int | None = None) -> None:
        """Another number of sandboxes; those that are too many go when nobody holds them.

        Raises:
            SpecInvalid: no such number can be.
        """
        _check_size(size, ready)
        self._pool.resize(size, ready, time.monotonic())
        self._settle()

    def restart(self, sandbox_id: str) -> None:
        """An operator's wish: a fresh instance, out of quarantine if need be."""
        self._pool.restart(sandbox_id, time.monotonic())
        self._settle()

    def remove(self, sandbox_id: str) -> None:
        """An operator's wish: end it, and keep its place empty until a restart."""
        self._pool.remove(sandbox_id, time.monotonic())
        self._settle()

    def latencies_s(self) -> tuple[list[float], list[float]]:
        """How long the newest starts took, and what the present holders asked for last."""
        activities = [self._activity(member) for member in self._pool.members.values()]
        return list(self._instances.started_s), [s for each in activities if each is not None for s in each.took_s]

    def metrics(self) -> dict[str, float]:
        """Counters since start, and sandboxes by state (`state_READY`, …)."""
        states = Counter(member.state for member in self._pool.members.values())
        return {
            **{f"state_{state.value}": float(states[state]) for state in State},
            **{name: float(count) for name, count in self._counts.items()},
            "store_failed": float(self._ledger.failures),
            "waiting": float(len(self._waiters)),
            "start_s_mean": self._instances.start_s / max(1, self._counts["started"]),
        }

    def exhausted(self) -> str:
        """Why no sandbox can ever become READY again; empty while one can."""
        return self._pool.exhausted()

    def failures(self) -> dict[str, int]:
        """How often each sandbox failed within its restart window; those that did not are left out."""
        return self._pool.failures(time.monotonic())

    def instances(self) -> set[str]:
        """Ids of the instances that its sandboxes run in, or that are being started for them."""
        return {instance_id(member.id, member.generation) for member in self._pool.members.values()}

    def instance(self, sandbox_id: str) -> Instance | None:
        """What runs there now; None between two instances."""
        live = self._instances.get(sandbox_id)
        return None if live is None else live.instance

    def snapshot(self) -> list[dict[str, Any]]:
        """Every sandbox as `rock ps` shows it. Looking renews nothing."""
        return [
            describe(member, self.spec, self.runtime, self._instances.get(member.id), self._activity(member))
            for member in self._pool.members.values()
        ]

    def events(self, after: int = 0, limit: int = 1_000) -> list[EventRow]:
        """What happened, oldest first."""
        return self._store.events(after, limit)

    def newest_events(self, limit: int) -> list[EventRow]:
        """The newest of what happened, oldest first."""
        return self._store.history(limit=limit)

    async def close(self) -> None:
        """End every lease and every sandbox. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._keeper is not None:
                self._keeper.cancel()
                await asyncio.wait([self._keeper])
            self._pool.stop(time.monotonic())
            self._settle()
            await self._instances.settled()
        finally:
            try:
                if self._owns_runtime:
                    await self.runtime.close()
            finally:
                if self._owns_store:
                    self._store.close()

    async def _keep(self) -> None:
        """Tick whenever something is due."""
        while True:
            self._settle()
            self._wakeup.clear()
            due_s = self._pool.next_wakeup_s()
            try:
                async with asyncio.timeout(None if due_s is None else max(0.0, due_s - time.monotonic())):
                    await self._wakeup.wait()
            except TimeoutError:
                continue

    def _settle(self) -> None:
        """Let the pool decide, carry it out, and serve those who wait."""
        if self._keeper is None and not self._closed:
            return
        self._pool.waiting = sum(not waiter.lease.done() for waiter in self._waiters)
        try:
            self._pool.tick(time.monotonic())
        except StoreFailed:
            self._ledger.failures += 1  # no start without a token that is written down
            asyncio.get_running_loop().call_later(STORE_RETRY_S, self._wakeup.set)
        self._carry_out_all()
        while self._waiters:
            waiter = self._waiters[0]
            if not waiter.lease.done() and not self._serve(waiter):
                break
            self._waiters.popleft()
        self._carry_out_all()
        self._fail_hopeless()
        self._wakeup.set()

    def _serve(self, waiter: _Waiter) -> bool:
        """Give the one who waits longest a lease, recorded before it is known; False when nothing is READY."""
        try:
            lease = self._pool.grant(waiter.owner, waiter.ttl_s, time.monotonic(), waiter.sandbox_id)
        except StoreFailed as error:
            waiter.lease.set_exception(error)
            return True
        if lease is None:
            return False
        try:
            self._ledger.begin_lease(lease, waiter.pid)
        except StoreFailed as error:
            self._pool.release(lease.sandbox_id, lease.token, time.monotonic(), recycle=False)
            waiter.lease.set_exception(error)
        else:
            waiter.lease.set_result(lease)
        return True

    def _fail_hopeless(self) -> None:
        reason = self._pool.exhausted()
        if not reason:
            return
        error = (
            FleetClosed("the fleet is closed")
            if self._closed
            else FleetExhausted(f"no sandbox of {self.spec.name!r} can start: {reason}")
        )
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.lease.done():
                waiter.lease.set_exception(error)

    def _carry_out_all(self) -> None:
        for decision in self._pool.take():
            self._carry_out(decision)

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case Start(sandbox_id, generation, floor):
                self._instances.start(sandbox_id, generation, floor)
            case Discard(sandbox_id, generation, lost):
                self._instances.discard(sandbox_id, generation, lost)
            case Probe(sandbox_id, generation):
                self._instances.probe(sandbox_id, generation)
            case Revoke(lease, reason):
                self._end_lease(lease.token, reason)
            case Note(sandbox_id, kind, detail):
                self._counts[kind] += 1
                live = self._instances.get(sandbox_id)
                if kind == Event.STARTED and live is not None:
                    detail = f"on {live.instance.node}"
                self._ledger.event(sandbox_id, kind, detail)
                self._ledger.sandbox(sandbox_id, self._pool.members.get(sandbox_id), live)

    def _activity(self, member: Member) -> Activity | None:
        held = None if member.lease is None else self._holders.get(member.lease.token)
        return None if held is None else held.activity

    def _end_lease(self, token: int, outcome: str) -> None:
        self._holders.end(token, outcome)
        self._ledger.end_lease(token, outcome)

    def _go_on(self, row: SandboxRow, live: Live, held: LeaseRow | None) -> None:
        """Go on with a sandbox that an earlier manager started, and with the lease on it."""
        lease = None if held is None else lease_again(held)
        self._pool.adopt(row.id, lease, time.monotonic())
        if held is not None and lease is not None:
            pid = int(held.process.partition(":")[0]) if held.process else None
            self._holders.add(lease, self._in_hand(lease, live, heartbeats=False), pid)
            if held.process and not processes.is_alive(held.process):
                self._owner_died(lease)
        self._instances.listen(row.id)

    async def _wait(self, waiter: _Waiter, first: bool) -> Lease:
        if self._closed or self._keeper is None:
            raise FleetClosed("the fleet is not open; use `async with Fleet(...)`")
        self._waiters.insert(0 if first else len(self._waiters), waiter)
        self._settle()
        try:
            return await waiter.lease
        except asyncio.CancelledError:
            if waiter.lease.done() and not waiter.lease.cancelled() and waiter.lease.exception() is None:
                await self.release(waiter.lease.result(), recycle=False)
            waiter.lease.cancel()
            raise

    async def _hand_over(self, lease: Lease, heartbeats: bool, owner_pid: int | None) -> LeasedSandbox | None:
        """Fence the sandbox against earlier holders; None if it was lost meanwhile (the pool knows)."""
        live = self._instances.get(lease.sandbox_id)
        if live is None:
            return None
        try:
            await live.channel.request("fence", {"token": lease.token}, timeout_s=self.spec.health.timeout_s)
            lease = self.heartbeat(lease)
        except SandboxError:
            await self.release(lease, recycle=True)
            return None
        except asyncio.CancelledError:
            await self.release(lease, recycle=False)
            raise
        sandbox = self._in_hand(lease, live, heartbeats)
        self._holders.add(lease, sandbox, owner_pid)
        return sandbox

    def _in_hand(self, lease: Lease, live: Live, heartbeats: bool) -> LeasedSandbox:
        return LeasedSandbox(self, lease, live.channel, self.spec.env, live.instance.python, heartbeats)

    def _owner_died(self, lease: Lease) -> None:
        self._ledger.event(lease.sandbox_id, "owner_died", lease.owner)
        with contextlib.suppress(LeaseLost):
            self._pool.release(lease.sandbox_id, lease.token, time.monotonic(), recycle=True)
        self._end_lease(lease.token, "its owner died")
        self._settle()


def _check_size(size: int, ready: int | None) -> None:
    if size < 1 or (ready is not None and not 0 <= ready <= size):
        raise SpecInvalid(
            f"a fleet needs at least one sandbox and 0 to `size` READY ones, not size={size}, ready={ready}"
        )
