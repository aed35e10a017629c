"""What the dashboard shows, as plain values: one `Snapshot` is one refresh.

Frozen, and without a clock of its own: every time is given, in seconds since the epoch. Two parts, each of which may
be missing: the fleet, and a run. Text in it may come from an agent; who draws it strips it first (`text.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

EVENTS = 200
"""So many of the newest events are in a snapshot."""
Row = Mapping[str, float]
"""Figures of one iteration, by the names of `metrics.jsonl`; `iteration` is one of them."""
Signals = Mapping[str, float]
Colour = tuple[int, int, int]
"""Red, green, blue; 0 to 255."""


@dataclass(frozen=True)
class LeaseFacts:
    owner: str
    token: int
    deadline: float
    """When it ends unless its holder sends a heartbeat."""


@dataclass(frozen=True)
class SandboxFacts:
    """One sandbox. None stands for what the fleet cannot tell."""

    id: str
    pool: str
    state: str
    """A value of `lifecycle.State`."""
    runtime: str = "process"
    image: str | None = None
    node: str | None = None
    pid: int | None = None
    restarts: int = 0
    last_error: str | None = None
    lease: LeaseFacts | None = None
    since: float | None = None
    """When it came into its state."""
    task: str | None = None
    """What is played in it."""
    step: int | None = None
    """Steps of the episode that is played in it."""
    active: float | None = None
    """When its holder last asked something of it: idle is the time since."""
    cpu: float | None = None
    """Cores that it used on average since the last look."""
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    cpu_limit: float | None = None


@dataclass(frozen=True)
class PoolFacts:
    """What is wanted of a pool, and what there is."""

    name: str
    runtime: str
    size: int
    """Sandboxes at most."""
    ready: int | None
    """Wanted READY beyond those that are leased; None: all `size` are kept up."""
    states: Mapping[str, int]
    """Number of sandboxes by state."""
    waiting: int = 0
    """Callers that wait for a sandbox."""
    exhausted: str | None = None
    """Why no sandbox of it can ever start; None while one can."""
    image: str | None = None


@dataclass(frozen=True)
class EventFacts:
    """Something that happened; `seq` only grows."""

    seq: int
    time: float
    sandbox: str
    kind: str
    detail: str = ""


@dataclass(frozen=True)
class AlertFacts:
    """A rule that fired, of the fleet or of a run."""

    rule: str
    subject: str
    """What it is about: a sandbox, a pool, a folder, the run."""
    severity: str
    """`warning` or `critical`."""
    since: float
    text: str
    """What happened, why, and what to do."""
    resolved: float | None = None
    """When the condition ended; None while it lasts."""


@dataclass(frozen=True)
class Latency:
    """Of the newest so many; seconds."""

    count: int
    p50_s: float
    p95_s: float


@dataclass(frozen=True)
class FleetFacts:
    """Every pool and sandbox of one manager, whatever node they live on."""

    address: str
    """Socket or URL that answered."""
    began: float
    """When its manager began."""
    pools: tuple[PoolFacts, ...] = ()
    sandboxes: tuple[SandboxFacts, ...] = ()
    events: tuple[EventFacts, ...] = ()
    """The newest, oldest first."""
    alerts: tuple[AlertFacts, ...] = ()
    counters: Mapping[str, float] = field(default_factory=dict)
    """Events since the manager began, by kind (`started`, `lost`, …), all pools together."""
    starts: Latency | None = None
    execs: Latency | None = None
    """Requests of holders to their sandboxes."""


@dataclass(frozen=True)
class EvaluationFacts:
    iteration: int
    """Updates that the evaluated policy had seen."""
    where: str
    """Split, and domain where there are several."""
    success: float
    episodes: int
    by_kind: Mapping[str, float] = field(default_factory=dict)
    """Success by type of task."""


@dataclass(frozen=True)
class RunFacts:
    """A run, live or over, as its folder tells of it."""

    name: str
    path: str
    state: str
    """`running` (a process holds the folder), `finished` or `stopped` (it can be resumed)."""
    iterations: int
    """Planned."""
    rows: tuple[Row, ...] = ()
    """Every iteration so far, oldest first."""
    evaluations: tuple[EvaluationFacts, ...] = ()
    alerts: tuple[AlertFacts, ...] = ()
    began: float | None = None
    updated: float | None = None
    """When the folder last got a trajectory or an iteration."""
    interval_s: float | None = None
    """Usual time between two iterations (median of the newest); None before there are two."""
    staleness_bound: float | None = None
    """Versions that a trajectory may be behind the policy that learns from it."""
    in_flight: int | None = None
    """Episodes that are being played."""
    buffered: int | None = None
    """Episodes that are finished and wait for the learner."""
    batch: int | None = None
    """Episodes that an iteration learns from: what `buffered` is measured by."""


@dataclass(frozen=True)
class Snapshot:
    """One look at everything."""

    at: float
    fleet: FleetFacts | None = None
    run: RunFacts | None = None
    away: str = ""
    """Why there is no fleet, where one was asked for; empty otherwise."""


@dataclass(frozen=True)
class TrajectoryFacts:
    """An episode in a list."""

    id: str
    iteration: int
    group: str
    task: str
    kind: str
    outcome: str
    success: bool
    reward: float
    turns: int
    tokens: int
    staleness: int | None = None
    cause: str = ""
    """Of an infrastructure error."""
    domain: str = ""


@dataclass(frozen=True)
class Token:
    """One token of an action."""

    text: str
    marks: str = ""
    """`*` an anchor, `^` introduces one."""
    values: Signals = field(default_factory=dict)
    """By signal: `probability`, `advantage`, `gamma`, `sigma`, …; absent where it was not computed."""
    colours: Mapping[str, Colour] = field(default_factory=dict)
    """Background by signal, where the value has one."""


@dataclass(frozen=True)
class TurnFacts:
    """What was seen, done and paid."""

    observation: str
    action: str
    reward: float
    valid: bool
    tokens: tuple[Token, ...] = ()
    spoke: str = ""
    """Versions of the policy that spoke: `v4`, or `v4 then v5`."""


@dataclass(frozen=True)
class Episode:
    """A trajectory turn by turn."""

    facts: TrajectoryFacts
    turns: tuple[TurnFacts, ...]
    signals: tuple[str, ...]
    """What its tokens can be coloured by; `probability` is always one."""
    rest: str = ""
    """What was seen after the last action."""
    error: str = ""
    timings_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class GroupFacts:
    """The episodes of one prompt that are learned from together."""

    id: str
    iteration: int
    task: str
    kind: str
    members: int
    solved: int
    reward_mean: float
    reward_std: float
    outcomes: Mapping[str, int] = field(default_factory=dict)
    round: str = ""
    """Under tail batching: `short` or `long`."""


Description = Mapping[str, Any]
"""All that is known of a sandbox, as `rock describe --json` prints it."""
