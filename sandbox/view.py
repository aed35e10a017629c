"""A sandbox as `rock ps --json`, the service and the dashboard show it."""

from __future__ import annotations

import time
from typing import Any

from rocknroll.sandbox.live import Live
from rocknroll.sandbox.pool import Member
from rocknroll.sandbox.runtimes.base import Runtime
from rocknroll.sandbox.spec import SandboxSpec


def describe(member: Member, spec: SandboxSpec, runtime: Runtime, live: Live | None) -> dict[str, Any]:
    """`deadline` is in seconds since the epoch. Nothing here is a secret."""
    lease = member.lease
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
            "deadline": time.time() + lease.deadline_s - time.monotonic(),
        },
        "pid": live and live.instance.pid,
        "restarts": member.restarts,
        "last_error": member.last_error or None,
    }
