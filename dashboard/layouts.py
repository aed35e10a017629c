"""The tables there are, column by column (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from rocknroll.dashboard.columns import Cell, Column, Layout, natural, number, since, words
from rocknroll.dashboard.figures import UNKNOWN
from rocknroll.dashboard.snapshot import AlertFacts, EventFacts, GroupFacts, SandboxFacts, TrajectoryFacts
from rocknroll.dashboard.text import duration, size

TONES: Mapping[str, str] = {
    "READY": "good",
    "LEASED": "busy",
    "STARTING": "coming",
    "RESTARTING": "coming",
    "SUSPECT": "warning",
    "DEAD": "error",
    "QUARANTINED": "error",
    "STOPPED": "quiet",
}
TROUBLE = ("QUARANTINED", "DEAD", "SUSPECT")
_ORDER = (*TROUBLE, "RESTARTING", "STARTING", "LEASED", "READY", "STOPPED")
"""By status: what needs somebody comes first."""
BAD_EVENTS = frozenset(
    {"lost", "start_failed", "quarantined", "removed", "probe_missed", "lease_expired", "lease_lost", "owner_died"}
)
NEAR = 0.9
"""Share of its memory limit from which a sandbox is marked."""
LEARNED_FROM = ("completed", "truncated")
BAD_CURVES = ("faults/", "aborted/", "dropped", "invalid")


def clock(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%H:%M:%S")


def _status(one: SandboxFacts) -> tuple[int, tuple[str, int]]:
    return (_ORDER.index(one.state) if one.state in _ORDER else len(_ORDER), natural(one.id))


def _left(one: SandboxFacts, at: float) -> Cell:
    return Cell(UNKNOWN) if one.lease is None else Cell(duration(one.lease.deadline - at))


def _memory_tone(one: SandboxFacts) -> str:
    limit = one.memory_limit_bytes
    return "warning" if limit is not None and (one.memory_bytes or 0) > NEAR * limit else ""


def _holder(one: SandboxFacts) -> str | None:
    return None if one.lease is None else one.lease.owner


SANDBOXES: Layout[SandboxFacts] = Layout(
    columns=(
        words("id", "ID", 16, lambda one: one.id, lambda one: natural(one.id)),
        words("state", "STATE", 12, lambda one: one.state, _status, lambda one: TONES.get(one.state, "")),
        number("step", "STEP", 5, lambda one: one.step),
        since("idle", "IDLE", lambda one: one.active),
        number("cpu", "CPU", 6, lambda one: one.cpu, lambda cores: f"{cores:.2f}"),
        number("memory", "MEM", 6, lambda one: one.memory_bytes, lambda count: size(int(count)), _memory_tone),
        number("restarts", "RST", 5, lambda one: one.restarts, tone=lambda one: "warning" if one.restarts else "quiet"),
        Column("left", "LEFT", 8, _left, lambda one: (one.lease is None, one.lease.deadline if one.lease else 0.0)),
        words("task", "TASK", 24, lambda one: one.task, shown=False),
        words(
            "error", "LAST ERROR", 60, lambda one: one.last_error, tone=lambda one: "error" if one.last_error else ""
        ),
        words("holder", "HOLDER", 24, _holder),
        since("age", "AGE", lambda one: one.since),
        words("node", "NODE", 16, lambda one: one.node),
        words("pool", "POOL", 12, lambda one: one.pool, shown=False),
        words("image", "IMAGE", 24, lambda one: one.image or one.runtime),
        number("pid", "PID", 8, lambda one: one.pid, falling=False, shown=False),
    ),
    key=lambda one: one.id,
    found_by=lambda one: " ".join(
        filter(
            None,
            (one.id, one.state, one.pool, one.node, one.image, one.runtime, one.task, one.last_error, _holder(one)),
        )
    ),
    bad=lambda one: one.state in TROUBLE,
    sorted_by="id",
)

EVENTS: Layout[EventFacts] = Layout(
    columns=(
        words("time", "TIME", 9, lambda one: clock(one.time), lambda one: -one.seq),
        words("sandbox", "SANDBOX", 16, lambda one: one.sandbox, lambda one: natural(one.sandbox)),
        words("kind", "EVENT", 17, lambda one: one.kind, tone=lambda one: "error" if one.kind in BAD_EVENTS else ""),
        words("detail", "DETAIL", 120, lambda one: one.detail),
    ),
    key=lambda one: str(one.seq),
    found_by=lambda one: f"{one.sandbox} {one.kind} {one.detail}",
    bad=lambda one: one.kind in BAD_EVENTS,
    sorted_by="time",
)


def _alert_tone(one: AlertFacts) -> str:
    return "quiet" if one.resolved is not None else "error" if one.severity == "critical" else "warning"


def _lasted(one: AlertFacts, at: float) -> Cell:
    return Cell(duration((at if one.resolved is None else one.resolved) - one.since))


ALERTS: Layout[AlertFacts] = Layout(
    columns=(
        words("since", "SINCE", 9, lambda one: clock(one.since), lambda one: (one.resolved is not None, -one.since)),
        words("severity", "SEVERITY", 9, lambda one: one.severity, tone=_alert_tone),
        Column("lasted", "FOR", 8, _lasted, lambda one: one.since),
        words("over", "OVER", 9, lambda one: None if one.resolved is None else clock(one.resolved)),
        words("rule", "RULE", 16, lambda one: one.rule),
        words("subject", "ABOUT", 18, lambda one: one.subject),
        words("text", "WHAT", 200, lambda one: one.text),
    ),
    key=lambda one: f"{one.rule} {one.subject} {one.since}",
    found_by=lambda one: f"{one.rule} {one.subject} {one.severity} {one.text}",
    bad=lambda one: one.resolved is None,
    sorted_by="since",
)

GROUPS: Layout[GroupFacts] = Layout(
    columns=(
        words("id", "GROUP", 10, lambda one: one.id, lambda one: natural(one.id)),
        number("iteration", "ITER", 5, lambda one: one.iteration),
        number("solved", "SOLVED", 7, lambda one: one.solved, tone=lambda one: "good" if one.solved else "quiet"),
        number("members", "OF", 4, lambda one: one.members),
        number("reward", "REWARD", 8, lambda one: one.reward_mean, lambda value: f"{value:+.2f}"),
        number("spread", "SPREAD", 7, lambda one: one.reward_std, lambda value: f"{value:.2f}"),
        words("kind", "KIND", 30, lambda one: one.kind),
        words("outcomes", "OUTCOMES", 30, lambda one: ", ".join(f"{n} {what}" for what, n in one.outcomes.items())),
        words("round", "ROUND", 6, lambda one: one.round, shown=False),
        words("task", "TASK", 60, lambda one: one.task),
    ),
    key=lambda one: f"{one.iteration} {one.id}",
    found_by=lambda one: f"{one.id} {one.kind} {one.task} {' '.join(one.outcomes)}",
    bad=lambda one: any(what not in LEARNED_FROM for what in one.outcomes),
)

TRAJECTORIES: Layout[TrajectoryFacts] = Layout(
    columns=(
        words("id", "ID", 12, lambda one: one.id, lambda one: natural(one.id)),
        number("iteration", "ITER", 5, lambda one: one.iteration),
        words("outcome", "OUTCOME", 12, lambda one: one.outcome),
        words("solved", "SOLVED", 7, lambda one: "yes" if one.success else "no", lambda one: not one.success),
        number("reward", "REWARD", 8, lambda one: one.reward, lambda value: f"{value:+.2f}"),
        number("turns", "TURNS", 6, lambda one: one.turns),
        number("tokens", "TOKENS", 7, lambda one: one.tokens),
        number("stale", "STALE", 6, lambda one: one.staleness),
        words("kind", "KIND", 30, lambda one: f"{one.domain}: {one.kind}" if one.domain else one.kind),
        words("group", "GROUP", 10, lambda one: one.group, lambda one: natural(one.group), shown=False),
        words("task", "TASK", 60, lambda one: one.task),
        words("cause", "LOST TO", 24, lambda one: one.cause, shown=False),
    ),
    key=lambda one: one.id,
    found_by=lambda one: " ".join(
        (
            one.id,
            one.outcome,
            "solved" if one.success else "failed",
            one.kind,
            one.task,
            one.group,
            one.cause,
            one.domain,
        )
    ),
    bad=lambda one: one.outcome not in LEARNED_FROM,
)


class Curve(NamedTuple):
    """One figure of a run over its iterations."""

    name: str
    points: tuple[tuple[float, float], ...]
    """(iteration, value)."""

    @property
    def values(self) -> list[float]:
        return [value for _, value in self.points]


def _short(value: float) -> str:
    return f"{value:.4g}"


CURVES: Layout[Curve] = Layout(
    columns=(
        words("name", "CURVE", 34, lambda one: one.name),
        number("last", "LAST", 11, lambda one: one.values[-1], _short),
        number("first", "FIRST", 11, lambda one: one.values[0], _short),
        number("least", "MIN", 11, lambda one: min(one.values), _short),
        number("most", "MAX", 11, lambda one: max(one.values), _short),
        number("count", "ROWS", 6, lambda one: len(one.points)),
    ),
    key=lambda one: one.name,
    found_by=lambda one: one.name,
    bad=lambda one: any(word in one.name for word in BAD_CURVES) and one.values[-1] > 0,
)
