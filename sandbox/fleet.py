"""The fleet: an asyncio shell around the pure pool.

Carries the pool's decisions out (starts, kills, probes), feeds back what happened, hands READY
sandboxes to waiting callers in order, and records every event. Whatever ends it, nothing is left.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter, deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rocknroll.sandbox.channel import Channel, Header
from rocknroll.sandbox.errors import (
    EnvError,
    FleetClosed,
    FleetExhausted,
    LeaseLost,
    LeaseTimeout,
    SandboxError,
    SpecInvalid,
    StartFailed,
)
from rocknroll.sandbox.lease import Lease, Tokens
from rocknroll.sandbox.leased import LeasedSandbox
from rocknroll.sandbox.lifecycle import State
from rocknroll.sandbox.pool import Decision, Discard, Note, Pool, Probe, Revoke, Start
from rocknroll.sandbox.preload import preload
from rocknroll.sandbox.runtimes.base import Instance, Runtime
from rocknroll.sandbox.spec import SandboxSpec
from rocknroll.sandbox.store import EventRow, Store

STARTS_PER_CORE = 2
"""More starts at once gain nothing, they only make each other late."""
ERROR_TEXT_CHARS = 4_000


@dataclass
class _Live:
    """What exists of a started sandbox."""

    generation: int
    instance: Instance
    channel: Channel


@dataclass
class _Waiter:
    owner: str
    ttl_s: float
    lease: asyncio.Future[Lease] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Fleet:
    """`size` sandboxes of one spec, kept READY. Use as an async context manager.

    `store`: a path or a Store; None keeps the record in memory. `owns_runtime=False` leaves the
    runtime open at the end, for several fleets on one.
    """

    def __init__(
        self,
        spec: SandboxSpec,
        size: int,
        runtime: Runtime,
        store: Store | Path | str | None = None,
        max_starting: int | None = None,
        owns_runtime: bool = True,
    ) -> None:
        if size < 1:
            raise SpecInvalid(f"a fleet needs at least one sandbox, not {size}")
        self.spec, self.runtime = spec, runtime
        self._store = store if isinstance(store, Store) else Store(":memory:" if store is None else store)
        limit = max_starting or STARTS_PER_CORE * len(os.sched_getaffinity(0))
        self._pool = Pool(spec, size, limit, tokens=Tokens(self._store.last_token()))
        self._owns_runtime = owns_runtime
        self._live: dict[str, _Live] = {}
        self._held: dict[int, LeasedSandbox] = {}
        self._waiters: deque[_Waiter] = deque()
        self._starts: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wakeup = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False
        self._counts: Counter[str] = Counter()
        self._start_s = 0.0

    async def __aenter__(self) -> Self:
        """Begin to start sandboxes in the background; returns at once."""
        self._keeper = asyncio.create_task(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def lease(
        self, owner: str, ttl_s: float = 60.0, timeout_s: float | None = None, heartbeats: bool = True
    ) -> LeasedSandbox:
        """Wait for a READY sandbox, first come first served. With `heartbeats` the lease renews itself until released.

        Raises:
            FleetExhausted: no sandbox can ever become READY.
            FleetClosed: the fleet was closed.
            LeaseTimeout: none was READY within `timeout_s`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                sandbox = None
                first = False
                while sandbox is None:
                    lease = await self._wait(_Waiter(owner, ttl_s), first)
                    sandbox = await self._hand_over(lease, heartbeats)
                    first = True
                return sandbox
        except TimeoutError:
            states = Counter(member.state.value for member in self._pool.members.values())
            raise LeaseTimeout(f"no sandbox was READY within {timeout_s} s; states: {dict(states)}") from None

    def heartbeat(self, lease: Lease, ttl_s: float | None = None) -> Lease:
        """Extend a lease; `LeasedSandbox.heartbeat` is the holder's way.

        Raises:
            LeaseLost: it is over.
        """
        return self._pool.heartbeat(lease.sandbox_id, lease.token, time.monotonic(), ttl_s)

    async def release(self, lease: Lease, recycle: bool) -> None:
        """End a lease; `LeasedSandbox.release` is the holder's way. A lease that is over already is left alone."""
        try:
            self._pool.release(lease.sandbox_id, lease.token, time.monotonic(), recycle)
        except LeaseLost:
            return
        self._held.pop(lease.token, None)
        self._store.end_lease(lease.token, "recycled" if recycle else "released")
        self._settle()

    def restart(self, sandbox_id: str) -> None:
        """An operator's wish: a fresh instance, out of quarantine if need be."""
        self._pool.restart(sandbox_id, time.monotonic())
        self._settle()

    def metrics(self) -> dict[str, float]:
        """Counters since start, and sandboxes by state (`state_READY`, …)."""
        states = Counter(member.state for member in self._pool.members.values())
        return {
            **{f"state_{state.value}": float(states[state]) for state in State},
            **{name: float(count) for name, count in self._counts.items()},
            "waiting": float(len(self._waiters)),
            "start_s_mean": self._start_s / max(1, self._counts["started"]),
        }

    def snapshot(self) -> list[dict[str, Any]]:
        """Every sandbox as `rock ps` shows it. Looking renews nothing."""
        now_s, now = time.monotonic(), time.time()
        return [
            {
                "id": member.id,
                "state": member.state.value,
                "image": None,
                "runtime": self.runtime.name,
                "node": os.uname().nodename,
                "lease": None
                if member.lease is None
                else {
                    "owner": member.lease.owner,
                    "token": member.lease.token,
                    "deadline": now + member.lease.deadline_s - now_s,
                },
                "pid": self._live[member.id].instance.pid if member.id in self._live else None,
                "restarts": member.restarts,
                "last_error": member.last_error or None,
            }
            for member in self._pool.members.values()
        ]

    def events(self, after: int = 0, limit: int = 1_000) -> list[EventRow]:
        """What happened, oldest first."""
        return self._store.events(after, limit)

    async def close(self) -> None:
        """End every lease and every sandbox. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._keeper is not None:
                self._keeper.cancel()
            self._pool.stop(time.monotonic())
            self._settle()
            pending = [*self._starts.values(), *self._tasks, *([self._keeper] if self._keeper else [])]
            await asyncio.gather(*pending, return_exceptions=True)
        finally:
            if self._owns_runtime:
                await self.runtime.close()
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
        self._pool.tick(time.monotonic())
        for decision in self._pool.take():
            self._carry_out(decision)
        while self._waiters:
            waiter = self._waiters[0]
            if waiter.lease.done():
                self._waiters.popleft()
                continue
            lease = self._pool.grant(waiter.owner, waiter.ttl_s, time.monotonic())
            if lease is None:
                break
            self._store.remember_token(lease.token)
            self._store.begin_lease(lease)
            waiter.lease.set_result(lease)
        for decision in self._pool.take():
            self._carry_out(decision)
        self._fail_hopeless()
        self._wakeup.set()

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

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case Start(sandbox_id, generation, floor):
                self._store.remember_token(floor)
                task = asyncio.create_task(self._start(sandbox_id, generation, floor))
                self._starts[sandbox_id, generation] = task
                task.add_done_callback(lambda done: self._starts.pop((sandbox_id, generation), None))
            case Discard(sandbox_id, generation):
                self._discard(sandbox_id, generation)
            case Probe(sandbox_id, generation):
                self._spawn(self._probe(sandbox_id, generation))
            case Revoke(lease, reason):
                self._store.end_lease(lease.token, reason)
                holder = self._held.pop(lease.token, None)
                if holder is not None:
                    holder.revoke(reason)
            case Note(sandbox_id, kind, detail):
                self._counts[kind] += 1
                self._store.add_event(sandbox_id, kind, detail)
                member = self._pool.members[sandbox_id]
                self._store.put_sandbox(
                    sandbox_id,
                    self.spec.fingerprint,
                    member.state,
                    member.generation,
                    member.restarts,
                    member.last_error,
                )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _discard(self, sandbox_id: str, generation: int) -> None:
        start = self._starts.get((sandbox_id, generation))
        if start is not None and start is not asyncio.current_task():
            start.cancel()
        live = self._live.get(sandbox_id)
        if live is not None and live.generation == generation:
            del self._live[sandbox_id]
            live.channel.close()
            self._spawn(live.instance.kill())

    async def _start(self, sandbox_id: str, generation: int, floor: int) -> None:
        began_s = time.monotonic()
        try:
            live = await self._bring_up(sandbox_id, generation, floor)
        except SandboxError as error:
            permanent = isinstance(error, SpecInvalid | EnvError) or (
                isinstance(error, StartFailed) and error.permanent
            )
            text = f"{error.kind}: {error}"[-ERROR_TEXT_CHARS:]
            self._pool.start_failed(sandbox_id, generation, time.monotonic(), text, permanent)
        else:
            if self._pool.started(sandbox_id, generation, time.monotonic()):
                self._start_s += time.monotonic() - began_s
                self._live[sandbox_id] = live
                live.instance.on_exit(lambda reason: self._lost(sandbox_id, generation, reason))
            else:
                live.channel.close()
                await live.instance.kill()
        self._settle()

    async def _bring_up(self, sandbox_id: str, generation: int, floor: int) -> _Live:
        """Instance, channel, environment, command: all of what READY means.

        Raises:
            SandboxError: one of them failed; nothing is left of the others.
        """
        instance = await self.runtime.start(self.spec, f"{sandbox_id}.{generation}", floor)
        channel: Channel | None = None
        try:
            channel = await Channel.connect(
                instance.socket_path,
                instance.secret,
                self.spec.start_timeout_s,
                on_event=lambda event: self._heard(sandbox_id, generation, event),
                on_lost=lambda reason: self._lost(sandbox_id, generation, reason),
            )
            await preload(channel, instance.python, self.spec, floor)
        except BaseException as error:
            tail = instance.output_tail()
            if channel is not None:
                channel.close()
            await asyncio.shield(instance.kill())
            if isinstance(error, SandboxError) and not isinstance(error, EnvError) and tail:
                error.args = (f"{error}; last output:\n{tail}",)
            raise
        return _Live(generation, instance, channel)

    async def _probe(self, sandbox_id: str, generation: int) -> None:
        live = self._live.get(sandbox_id)
        if live is None or live.generation != generation:
            return
        try:
            await live.channel.request("ping", timeout_s=self.spec.health.timeout_s)
            ok = True
        except SandboxError:
            ok = False
        self._pool.probed(sandbox_id, generation, ok, time.monotonic())
        self._settle()

    def _heard(self, sandbox_id: str, generation: int, event: Header) -> None:
        """The environment inside is gone: the sandbox is recycled, which is no failure of the slot."""
        self._pool.spent(sandbox_id, generation, time.monotonic(), str(event.get("kind")), str(event.get("message")))
        self._settle()

    def _lost(self, sandbox_id: str, generation: int, reason: str) -> None:
        self._pool.lost(sandbox_id, generation, time.monotonic(), reason)
        if not self._closed:
            self._settle()

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

    async def _hand_over(self, lease: Lease, heartbeats: bool) -> LeasedSandbox | None:
        """Fence the sandbox against earlier holders; None if it was lost meanwhile (the pool knows)."""
        live = self._live.get(lease.sandbox_id)
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
        sandbox = LeasedSandbox(self, lease, live.channel, self.spec.env, live.instance.python, heartbeats)
        self._held[lease.token] = sandbox
        return sandbox
