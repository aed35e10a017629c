"""What the overview says, as titled lists of figures (pure): the screen and `--once` draw the same ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rocknroll.dashboard.snapshot import EVENTS, EventFacts, FleetFacts, RunFacts, Snapshot
from rocknroll.dashboard.text import duration, latency, one_line, percent, size

WINDOW_S = 60.0
"""Rates are those of the last minute."""
HURT = frozenset({"lost", "start_failed", "quarantined", "removed"})
BACK = frozenset({"started", "recovered_idle", "recovered_leased"})
STATES = ("READY", "LEASED", "STARTING", "RESTARTING", "SUSPECT", "DEAD", "QUARANTINED", "STOPPED")
"""In the order in which they are told."""
SIDES = ("engine", "environments", "learner")
CURVES = {"batch/reward": "reward", "batch/success": "success"}
"""Of a run: what the overview draws, by name in `metrics.jsonl`."""
UNKNOWN = "-"


@dataclass(frozen=True)
class Figure:
    label: str
    value: str
    history: tuple[float, ...] = ()
    """What led to it, oldest first; drawn as a line of blocks where there is room."""


@dataclass(frozen=True)
class Panel:
    title: str
    figures: tuple[Figure, ...]


def panels(snapshot: Snapshot) -> tuple[Panel, ...]:
    """One for each part that is there."""
    found = []
    if snapshot.fleet is not None:
        found.append(Panel("Fleet", tuple(_fleet(snapshot.fleet, snapshot.at))))
    if snapshot.run is not None:
        found.append(Panel(f"Run {one_line(snapshot.run.name)}", tuple(_run(snapshot.run, snapshot.at))))
    return tuple(found)


def counts(snapshot: Snapshot) -> dict[str, int]:
    """Sandboxes by state, every state named; empty without a fleet."""
    if snapshot.fleet is None:
        return {}
    found = Counter(sandbox.state for sandbox in snapshot.fleet.sandboxes)
    return {
        **{state: found[state] for state in STATES},
        **{state: n for state, n in found.items() if state not in STATES},
    }


def target(fleet: FleetFacts) -> int:
    """Sandboxes that are wanted now, all pools together."""
    wanted = 0
    for pool in fleet.pools:
        leased = pool.states.get("LEASED", 0)
        wanted += pool.size if pool.ready is None else min(pool.size, leased + pool.waiting + pool.ready)
    return wanted


def _fleet(fleet: FleetFacts, at: float) -> Iterator[Figure]:
    by_state = Counter(sandbox.state for sandbox in fleet.sandboxes)
    told = " ".join(f"{by_state[state]} {state}" for state in STATES if by_state[state])
    up = sum(by_state[state] for state in ("READY", "LEASED", "SUSPECT"))
    yield Figure("sandboxes", f"{up} of {target(fleet)} up: {told or 'none'}")
    yield Figure("waiting", f"{sum(pool.waiting for pool in fleet.pools)} callers")
    created, lost, back = _rates(fleet, at)
    yield Figure("created", f"{created:.0f}/min")
    yield Figure("recovered", f"{back} of {lost} lost in the last minute")
    for label, found in (("start", fleet.starts), ("exec", fleet.execs)):
        text = (
            UNKNOWN if found is None else f"p50 {latency(found.p50_s)}, p95 {latency(found.p95_s)} (last {found.count})"
        )
        yield Figure(label, text)
    yield Figure("cpu", _cpu(fleet))
    yield Figure("memory", _memory(fleet))
    nodes = {sandbox.node for sandbox in fleet.sandboxes if sandbox.node}
    yield Figure("nodes", str(len(nodes)))
    yield Figure("manager", f"up {duration(at - fleet.began)}")


def _rates(fleet: FleetFacts, at: float) -> tuple[float, int, int]:
    """(starts a minute, sandboxes that were lost in the last minute, and of those: back again)."""
    recent = [event for event in fleet.events if at - event.time <= WINDOW_S]
    # With so many events that the minute is not all here, the rate is that of the part which is.
    span_s = max(at - recent[0].time, 1.0) if len(recent) == EVENTS else min(WINDOW_S, max(at - fleet.began, 1.0))
    hurt, back = recovery(recent)
    return sum(event.kind == "started" for event in recent) * WINDOW_S / span_s, len(hurt), len(back)


def recovery(events: Sequence[EventFacts]) -> tuple[set[str], set[str]]:
    """(sandboxes that something happened to, those of them that are back), by events in order."""
    hurt: set[str] = set()
    back: set[str] = set()
    for event in events:
        if event.kind in HURT:
            hurt.add(event.sandbox)
            back.discard(event.sandbox)
        elif event.kind in BACK and event.sandbox in hurt:
            back.add(event.sandbox)
    return hurt, back


def _cpu(fleet: FleetFacts) -> str:
    used = [sandbox.cpu for sandbox in fleet.sandboxes if sandbox.cpu is not None]
    limits = [sandbox.cpu_limit for sandbox in fleet.sandboxes if sandbox.cpu_limit is not None]
    return f"{sum(used):.1f} cores of {sum(limits):g} allowed" if used else UNKNOWN


def _memory(fleet: FleetFacts) -> str:
    used = [sandbox.memory_bytes for sandbox in fleet.sandboxes if sandbox.memory_bytes is not None]
    limits = [sandbox.memory_limit_bytes for sandbox in fleet.sandboxes]
    known = [limit for limit in limits if limit is not None]
    allowed = f" of {size(sum(known))} allowed" if known and len(known) == len(limits) else ""
    return f"{size(sum(used))}{allowed}" if used else UNKNOWN


def _run(run: RunFacts, at: float) -> Iterator[Figure]:
    done = int(run.rows[-1]["iteration"]) if run.rows else 0
    pace = f", {latency(run.interval_s)} each" if run.interval_s is not None else ""
    yield Figure("progress", f"{run.state}: iteration {done} of {run.iterations}{pace}")
    news = UNKNOWN if run.updated is None else f"{duration(at - run.updated)} ago"
    yield Figure("last news", news)
    last = run.rows[-1] if run.rows else {}
    for name, label in CURVES.items():
        history = tuple(row[name] for row in run.rows if name in row)
        now = UNKNOWN if not history else percent(history[-1]) if label == "success" else f"{history[-1]:+.3f}"
        yield Figure(label, now, history)
    bound = UNKNOWN if run.staleness_bound is None else f"{run.staleness_bound:g}"
    mean = f"{last['staleness/mean']:.2f}" if "staleness/mean" in last else UNKNOWN
    oldest = f"{last['staleness/max']:g}" if "staleness/max" in last else UNKNOWN
    yield Figure("staleness", f"mean {mean}, oldest {oldest}, bound {bound}")
    yield Figure("buffer", _buffer(run))
    idle = [f"{side} {percent(last[f'idle/{side}'])}" for side in SIDES if f"idle/{side}" in last]
    yield Figure("idle", ", ".join(idle) or UNKNOWN)
    speed = [
        f"{last[name]:.0f} {unit}"
        for name, unit in (("rollout/tokens_per_s", "tokens/s"), ("rollout/episodes_per_min", "episodes/min"))
        if name in last
    ]
    yield Figure("speed", ", ".join(speed) or UNKNOWN)
    for evaluation in run.evaluations[-1:]:
        text = f"{percent(evaluation.success)} of {evaluation.episodes} {one_line(evaluation.where)} tasks"
        yield Figure("evaluated", f"{text} at iteration {evaluation.iteration}")


def _buffer(run: RunFacts) -> str:
    if run.buffered is None:
        return UNKNOWN
    of = f" of a batch of {run.batch}" if run.batch else ""
    playing = f", {run.in_flight} being played" if run.in_flight is not None else ""
    return f"{run.buffered} episodes{of}{playing}"
