"""Whether to sleep: one look at everything, judged in a word and in reasons (pure).

The word is that of the worst reason. Nothing here has a memory: what needs one (a rate, a time without news) is in the
snapshot, or is an alert.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from rocknroll.dashboard.snapshot import AlertFacts, FleetFacts, PoolFacts, RunFacts, SandboxFacts, Snapshot
from rocknroll.dashboard.text import one_line

SLOW_START_S = 60.0
"""Starting for longer than this is told: healthy starts take seconds, also on a loaded machine."""
STALL_INTERVALS = 5.0
"""A run is stalled when nothing came for so many times its usual interval, ..."""
LEAST_STALL_S = 60.0
"""... and for so long at least: evaluations and checkpoints come between iterations of a small model."""
NAMED = 3
"""Sandboxes that a reason names."""
ERROR_CHARS = 160
UP = frozenset({"READY", "LEASED", "SUSPECT"})
COMING = frozenset({"STARTING", "RESTARTING"})
STALLS = frozenset({"stall", "stalled_queue"})
"""Rules whose alerts mean that nothing moves."""


class Level(IntEnum):
    """From best to worst."""

    HEALTHY = 0
    DEGRADED = 1
    STALLED = 2
    DOWN = 3

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Reason:
    level: Level
    text: str


@dataclass(frozen=True)
class Verdict:
    """`reasons` are worst first, and empty exactly when it is healthy."""

    level: Level
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        """In words, for one line."""
        if not self.reasons:
            return str(self.level)
        more = f" (and {len(self.reasons) - 1} more)" if len(self.reasons) > 1 else ""
        return f"{self.level} because {self.reasons[0]}{more}"


def judge(snapshot: Snapshot) -> Verdict:
    """The verdict on a snapshot."""
    reasons = sorted(_reasons(snapshot), key=lambda reason: -reason.level)
    level = reasons[0].level if reasons else Level.HEALTHY
    return Verdict(level, tuple(dict.fromkeys(reason.text for reason in reasons)))


def _reasons(snapshot: Snapshot) -> Iterator[Reason]:
    if snapshot.fleet is None and snapshot.run is None:
        yield Reason(Level.DOWN, one_line(snapshot.away) or "there is neither a fleet nor a run")
        return
    if snapshot.away:
        yield Reason(Level.DEGRADED, one_line(snapshot.away))
    if snapshot.fleet is not None:
        yield from _of_fleet(snapshot.fleet, snapshot.at)
        yield from _of_alerts(snapshot.fleet.alerts)
    if snapshot.run is not None:
        yield from _of_run(snapshot.run, snapshot.at)
        yield from _of_alerts(snapshot.run.alerts)


def _of_fleet(fleet: FleetFacts, at: float) -> Iterator[Reason]:
    hopeless = [pool for pool in fleet.pools if pool.exhausted]
    level = Level.DOWN if len(hopeless) == len(fleet.pools) else Level.DEGRADED
    for pool in hopeless:
        why = one_line(pool.exhausted or "", ERROR_CHARS)
        yield Reason(level, f"no sandbox of pool {one_line(pool.name)} can start: {why}")
    for pool in fleet.pools:
        if not pool.exhausted and _starved(pool):
            callers = "1 caller waits" if pool.waiting == 1 else f"{pool.waiting} callers wait"
            yield Reason(Level.STALLED, f"{callers} for pool {one_line(pool.name)}, where nothing is up or starting")
    for state in ("QUARANTINED", "DEAD", "SUSPECT"):
        found = [sandbox for sandbox in fleet.sandboxes if sandbox.state == state]
        if found:
            yield Reason(
                Level.DEGRADED, _share(found, len(fleet.sandboxes), f"{'is' if len(found) == 1 else 'are'} {state}")
            )
    slow = [one for one in fleet.sandboxes if one.state in COMING and at - (one.since or fleet.began) > SLOW_START_S]
    if slow:
        text = f"{'has' if len(slow) == 1 else 'have'} been starting for more than {SLOW_START_S:g} s"
        yield Reason(Level.DEGRADED, _share(slow, len(fleet.sandboxes), text))


def _starved(pool: PoolFacts) -> bool:
    return pool.waiting > 0 and not any(pool.states.get(state, 0) for state in UP | COMING)


def _share(found: list[SandboxFacts], total: int, what: str) -> str:
    names = ", ".join(one_line(sandbox.id) for sandbox in found[:NAMED]) + (", …" if len(found) > NAMED else "")
    error = next((sandbox.last_error for sandbox in found if sandbox.last_error), None)
    why = f": {one_line(error, ERROR_CHARS)}" if error else ""
    return f"{len(found)} of {total} sandboxes {what} ({names}{why})"


def _of_run(run: RunFacts, at: float) -> Iterator[Reason]:
    name = one_line(run.name)
    if run.state == "stopped":
        done = int(run.rows[-1]["iteration"]) if run.rows else 0
        how = f"`roll train --resume {one_line(run.path)}` goes on"
        yield Reason(Level.STALLED, f"run {name} stopped at iteration {done} of {run.iterations}; {how}")
    if run.state == "running" and run.updated is not None and run.interval_s is not None:
        silent_s, usual_s = at - run.updated, run.interval_s
        if silent_s > max(STALL_INTERVALS * usual_s, LEAST_STALL_S):
            text = f"run {name} has brought nothing for {silent_s:.0f} s (usually {usual_s:.0f} s an iteration)"
            yield Reason(Level.STALLED, text)


def _of_alerts(alerts: Iterable[AlertFacts]) -> Iterator[Reason]:
    for alert in alerts:
        if alert.resolved is None:
            level = Level.STALLED if alert.rule in STALLS else Level.DEGRADED
            yield Reason(level, f"{one_line(alert.subject)}: {one_line(alert.text, ERROR_CHARS)}")
