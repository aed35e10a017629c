"""What one fleet writes down, and when a failing record may stop it.

A lease is given only when it is on record; everything else is for looking at and for the next manager,
and a full disk must not stop sandboxes: such a failure is counted, and the fleet goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rocknroll.sandbox import owner
from rocknroll.sandbox.errors import StoreFailed
from rocknroll.sandbox.lease import Lease
from rocknroll.sandbox.live import Live
from rocknroll.sandbox.pool import Member
from rocknroll.sandbox.spec import SandboxSpec
from rocknroll.sandbox.store import LeaseRow, SandboxRow, Store


class Ledger:
    """The store, in the words of one fleet. Lease times come by the fleet's monotonic clock."""

    def __init__(self, store: Store, spec: SandboxSpec, node: str) -> None:
        """`node`: the machine that the fleet's sandboxes run on, empty when there are several."""
        self.store = store
        self.failures = 0
        """Records that could not be written."""
        self._spec, self._node = spec, node

    def begin_lease(self, lease: Lease, pid: int | None) -> None:
        """Raises: StoreFailed; the lease must not be given."""
        process = "" if pid is None else owner.identity(pid)
        self.store.begin_lease(lease, _wall(lease.deadline_s), process)

    def extend_lease(self, lease: Lease) -> None:
        self._try(lambda: self.store.extend_lease(lease.token, lease.ttl_s, _wall(lease.deadline_s)))

    def end_lease(self, token: int, outcome: str) -> None:
        self._try(lambda: self.store.end_lease(token, outcome))

    def event(self, sandbox_id: str, kind: str, detail: str) -> None:
        self._try(lambda: self.store.add_event(sandbox_id, kind, detail))

    def sandbox(self, sandbox_id: str, member: Member | None, live: Live | None) -> None:
        """How a sandbox stands, and what finds its instance again; None as a member: there is no such slot any more."""
        if member is None:
            self._try(lambda: self.store.forget_sandbox(sandbox_id))
            return
        record = live.instance.record if live is not None and live.generation == member.generation else None
        row = SandboxRow(
            id=sandbox_id,
            pool=self._spec.name,
            node=self._node if live is None else live.instance.node,
            spec=self._spec.fingerprint,
            state=member.state.value,
            generation=member.generation,
            restarts=member.restarts,
            last_error=member.last_error,
            record=record,
        )
        self._try(lambda: self.store.put_sandbox(row))

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except StoreFailed:
            self.failures += 1


def lease_again(row: LeaseRow) -> Lease:
    """A lease on record as one that goes on from now, with a full time to live."""
    now_s = time.monotonic()
    granted_s = now_s - (time.time() - row.granted)
    return Lease(f"lease-{row.token}", row.sandbox_id, row.owner, row.token, row.ttl_s, granted_s, now_s)


def _wall(monotonic_s: float) -> float:
    """A time of the fleet's clock in seconds since the epoch."""
    return time.time() + monotonic_s - time.monotonic()
