"""A sandbox as `rock ps --json`, the service and the dashboard show it."""

from __future__ import annotations

import time
from typing import Any

from rocknroll.sandbox.activity import Activity
from rocknroll.sandbox.live import Live
from rocknroll.sandbox.pool import Member
from rocknroll.sandbox.runtimes.base import Runtime
from rocknroll.sandbox.spec import SandboxSpec


def describe(
    member: Member, spec: SandboxSpec, runtime: Runtime, live: Live | None, activity: Activity | None
) -> dict[str, Any]:
    """`deadline`, `since` and `active` are in seconds since the epoch. Nothing here is a secret."""
    lease = member.lease
    epoch_s = time.time() - time.monotonic()
    return {
        "id": member.id,
        "pool": spec.name,
        "state": member.state.value,
        "image": spec.image or None,
        "runtime": runtime.name,
        "node": (runtime.node or None) if live is None else live.instance.node,
        "lease": lease
        and {
            "owner": lease.owner,
            "token": lease.token,
            "deadline": epoch_s + lease.deadline_s,
        },
        "pid": live and live.instance.pid,
        "restarts": member.restarts,
        "last_error": member.last_error or None,
        "since": epoch_s + member.since_s if member.since_s else None,  # None: as since the manager began
        "active": None if activity is None or activity.last_s is None else epoch_s + activity.last_s,
        "step": None if activity is None else activity.steps,
    }
