"""Ending what a manager left behind: its sandboxes, leases, files and socket. For `rock down`, after the manager."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from rocknroll.sandbox.lifecycle import State
from rocknroll.sandbox.site import RUNTIMES
from rocknroll.sandbox.state_folder import StateFolder
from rocknroll.sandbox.store import Store

OUTCOME = "the fleet was taken down"


@dataclass(frozen=True)
class Ended:
    """What was ended: ids of instances, tokens of leases."""

    instances: list[str]
    leases: list[int]


async def take_down(state: StateFolder) -> Ended:
    """End everything in a state folder whose manager is gone; only the record stays.

    Raises:
        StateLocked: a manager works there. RuntimeUnavailable: it cannot be seen what still runs.
        StoreFailed: the record cannot be used.
    """
    if not state.store.exists():
        return Ended([], [])
    state.prepare()
    with state.locked():
        store = Store(state.store)
        try:
            pools = state.last_fleet().get("pools", {})
            instances = await _sweep(store.fleet_id, state.run, {pool["runtime"] for pool in pools.values()})
            leases = [lease.token for lease in store.open_leases()]
            for token in leases:
                store.end_lease(token, OUTCOME)
            for pool in pools:
                for row in store.sandboxes(pool):
                    store.put_sandbox(replace(row, state=State.STOPPED.value, record=None))
        finally:
            store.close()
        state.service().unlink(missing_ok=True)
        shutil.rmtree(state.run, ignore_errors=True)
    return Ended(instances, leases)


async def _sweep(fleet_id: str, folder: Path, runtimes: Iterable[str]) -> list[str]:
    removed = []
    for name in sorted(runtimes):
        runtime = RUNTIMES[name](fleet_id, folder)
        try:
            removed += await runtime.sweep(())
        finally:
            await runtime.close()
    return removed
