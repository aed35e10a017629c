"""Leases in force: what each entitles to, by token, and word when the process of an owner ends."""

from __future__ import annotations

import os
from collections.abc import Callable

from rocknroll.sandbox import owner
from rocknroll.sandbox.lease import Lease
from rocknroll.sandbox.leased import LeasedSandbox


class Holders:
    """`owner_died` is called, on the running loop, with a lease whose owner's process is gone."""

    def __init__(self, owner_died: Callable[[Lease], None]) -> None:
        self._owner_died = owner_died
        self._held: dict[int, LeasedSandbox] = {}
        self._watches: dict[int, Callable[[], None]] = {}

    def add(self, lease: Lease, sandbox: LeasedSandbox, pid: int | None) -> None:
        """`pid`: the process that holds it, when it is one of this machine and not this one."""
        self._held[lease.token] = sandbox
        if pid is not None and pid != os.getpid():
            self._watches[lease.token] = owner.watch(pid, lambda: self._owner_died(lease))

    def get(self, token: int) -> LeasedSandbox | None:
        return self._held.get(token)

    def end(self, token: int, reason: str) -> None:
        """The lease is over; whoever holds it learns so. Idempotent."""
        sandbox, cancel = self._held.pop(token, None), self._watches.pop(token, None)
        if cancel is not None:
            cancel()
        if sandbox is not None:
            sandbox.revoke(reason)
