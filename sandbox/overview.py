"""What a dashboard shows of some fleets in one refresh, as plain JSON values; see `docs/sandbox/service.md`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from rocknroll.sandbox.activity import quantiles
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.lifecycle import State
from rocknroll.sandbox.nodes import this_node
from rocknroll.sandbox.store import EventRow
from rocknroll.sandbox.usage import Usage

NO_COUNTERS = frozenset({"waiting", "start_s_mean", *(f"state_{state}" for state in State)})
"""Of `Fleet.metrics`: what is not a number of events."""


async def sandboxes_and_figures(fleets: Iterable[Fleet], usage: Usage) -> dict[str, Any]:
    """`sandboxes` with what they use, `counters` of all fleets together, latencies of `starts` and `execs`."""
    fleets = list(fleets)
    rows = [(fleet, row) for fleet in fleets for row in fleet.snapshot()]
    here = {row["id"]: row["pid"] for _, row in rows if row["pid"] and row["node"] == this_node()}
    used = await usage.of(here)
    for fleet, row in rows:
        if row["id"] in here and row["id"] in used:
            row |= {"cpu": used[row["id"]].cpu, "memory_bytes": used[row["id"]].memory_bytes}
        limits = fleet.spec.resources
        row |= {"cpu_limit": limits.cpus, "memory_limit_bytes": limits.memory_bytes}
    counters: Counter[str] = Counter()
    starts_s, execs_s = [], []
    for fleet in fleets:
        counters.update({name: count for name, count in fleet.metrics().items() if name not in NO_COUNTERS})
        started_s, worked_s = fleet.latencies_s()
        starts_s += started_s
        execs_s += worked_s
    return {
        "sandboxes": [row for _, row in rows],
        "counters": dict(counters),
        "starts": quantiles(starts_s),
        "execs": quantiles(execs_s),
    }


def pool_state(fleet: Fleet) -> dict[str, Any]:
    """How a pool fares: sandboxes by state, who waits, and why nothing can ever start, if so."""
    rows = fleet.snapshot()
    return {
        "states": {state.value: sum(row["state"] == state for row in rows) for state in State},
        "waiting": int(fleet.metrics()["waiting"]),
        "exhausted": fleet.exhausted() or None,
    }


def event_json(event: EventRow) -> dict[str, Any]:
    """An event as it goes over the wire; `time` in seconds since the epoch."""
    return {
        "seq": event.seq,
        "time": event.time,
        "sandbox": event.sandbox_id,
        "kind": event.kind,
        "detail": event.detail,
    }
