"""Holders who keep account of every lease, and the faults that are drawn for the service they lease from."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from rocknroll.sandbox.client import AsyncClient, AsyncLease
from rocknroll.sandbox.errors import LeaseLost, LeaseTimeout, SandboxError, ServiceUnreachable, StaleToken
from rocknroll.sandbox.results import ExecResult

TTL_S = 8.0
RETRY_S = 0.1
MEMORY_BOMB = "exec python3 -c 'hold = [bytearray(1 << 22) for _ in iter(int, 1)]'"
DISK_FILL = "dd if=/dev/zero of=fill bs=1M count=4096; status=$?; rm -f fill; exit $status"


@dataclass
class Account:
    """What became of the leases, and what must never have happened."""

    granted: int = 0
    completed: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    """By the kind of the error that told the holder."""
    attacks: Counter[str] = field(default_factory=Counter)
    stale_refused: int = 0
    violations: list[str] = field(default_factory=list)

    @property
    def unaccounted(self) -> int:
        return self.granted - self.completed - sum(self.lost.values())


class Holder:
    """Leases, writes its token, reads all tokens back, releases; sometimes attacks its own sandbox."""

    def __init__(
        self, client: AsyncClient, pool: str, account: Account, rng: random.Random, stop: asyncio.Event
    ) -> None:
        self._client, self._pool, self._account, self._rng, self._stop = client, pool, account, rng, stop

    async def run(self) -> None:
        while not self._stop.is_set():
            try:
                lease = await self._client.lease(self._pool, ttl_s=TTL_S, timeout_s=20.0)
            except (LeaseTimeout, ServiceUnreachable):
                await asyncio.sleep(RETRY_S)
                continue
            self._account.granted += 1
            told = "released"
            try:
                await self._hold(lease)
                await self._insist(lease, lambda held: held.release())
                self._account.completed += 1
            except SandboxError as error:
                self._account.lost[error.kind] += 1
                told = f"{error.kind}: {error}"
            # Who gave up unheard cannot know: a new manager gives every lease its full time again.
            if "passed unheard" not in told:
                await self._write_late(lease.token, told)

    async def _hold(self, lease: AsyncLease) -> None:
        for _ in range(self._rng.randint(2, 6)):
            done = await self._exec(lease, f"echo {lease.token} >> tokens; cat tokens")
            tokens = [int(token) for token in done.stdout.split()]
            # The sandbox is reused, so the file tells who wrote before, and in which order.
            if tokens != sorted(tokens) or lease.token not in tokens:
                self._account.violations.append(f"{lease.id}: lease {lease.token} found {tokens}")
            if self._rng.random() < 0.1:
                await self._attack(lease)
            await asyncio.sleep(self._rng.random() * 0.2)

    async def _attack(self, lease: AsyncLease) -> None:
        name, command = self._rng.choice([("memory", MEMORY_BOMB), ("disk", DISK_FILL)])
        self._account.attacks[name] += 1
        done = await self._exec(lease, command)
        if done.exit_code == 0:
            self._account.violations.append(f"{lease.id}: the {name} attack was not stopped")

    async def _exec(self, lease: AsyncLease, command: str) -> ExecResult:
        done: ExecResult = await self._insist(lease, lambda held: held.exec(command, timeout_s=30.0))
        return done

    async def _insist(self, lease: AsyncLease, do: Callable[[AsyncLease], Awaitable[Any]]) -> Any:
        """Do it, waiting for a manager that is away; what is done twice then does no harm.

        Raises:
            SandboxError: the lease or the sandbox was lost, and this is how the holder learns of it.
        """
        held = lease
        while True:
            try:
                return await do(held)
            except ServiceUnreachable:
                await asyncio.sleep(RETRY_S)
                with contextlib.suppress(ServiceUnreachable):
                    held = await self._client.held(lease.token)

    async def _write_late(self, token: int, told: str) -> None:
        """What a paused worker does that does not know yet: it must be refused."""
        try:
            held = await self._client.held(token)
            await held.exec(f"echo {token} >> tokens")
        except (LeaseLost, StaleToken):
            self._account.stale_refused += 1
        except ServiceUnreachable:
            return
        else:
            self._account.violations.append(f"a command under token {token} was accepted although it was {told}")


@dataclass
class Faults:
    """Draws a fault every now and then; `manager` and `daemon` happen on a timetable of their own."""

    client: AsyncClient
    rng: random.Random
    done: Counter[str] = field(default_factory=Counter)

    async def run(self, duration_s: float, every_s: dict[Callable[[], Awaitable[None]], float]) -> None:
        """`every_s`: faults to the service itself, and how often they happen."""
        began_s = time.monotonic()
        due_s = {fault: began_s + wait_s for fault, wait_s in every_s.items()}
        while time.monotonic() < began_s + duration_s:
            await asyncio.sleep(self.rng.uniform(0.2, 1.0))
            for fault, at_s in due_s.items():
                if time.monotonic() >= at_s:
                    await fault()
                    self.done[fault.__name__] += 1
                    due_s[fault] = time.monotonic() + every_s[fault]
            with contextlib.suppress(ServiceUnreachable, ProcessLookupError):
                await self._strike()

    async def _strike(self) -> None:
        rows = [row for row in await self.client.snapshot() if row["pid"]]
        if not rows:
            return
        pid = self.rng.choice(rows)["pid"]
        name, number = self.rng.choice([("kill", signal.SIGKILL), ("kill", signal.SIGKILL), ("freeze", signal.SIGSTOP)])
        os.kill(pid, number)
        self.done[name] += 1
