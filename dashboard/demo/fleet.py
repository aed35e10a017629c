"""A fleet that is made up: the production pool, under a clock that is given and chance from a seed.

What sandboxes do (start, play, freeze, die) is drawn; what becomes of them is the pool's own decision, so no state
follows another that could not in a real fleet. Callers play the episodes of a recorded run. The same seed and clock
give the same fleet.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

from rocknroll.dashboard.snapshot import EventFacts, LeaseFacts, PoolFacts, SandboxFacts
from rocknroll.sandbox.decisions import Decision, Discard, Note, Probe, Revoke, Start
from rocknroll.sandbox.lease import Lease
from rocknroll.sandbox.lifecycle import LIVE, State
from rocknroll.sandbox.pool import Member, Pool
from rocknroll.sandbox.spec import HealthPolicy, Resources, SandboxSpec

EVENTS_KEPT = 10_000
TIMES_KEPT = 200
"""Starts and steps whose time is remembered."""
TTL_S = 60.0
ANSWER_S = 0.002
"""Of a probe."""
THINK_S = 4.0
"""Mean time between two episodes of one caller."""
SPREAD = 0.5
"""Of drawn times: the standard deviation of their logarithm."""
LOST = "killed by signal 9: the kernel ended it at its memory limit"


@dataclass(frozen=True)
class Script:
    """An episode of the recorded run, to be played again."""

    id: str
    task: str
    turns: int


@dataclass(frozen=True)
class Plan:
    """What one made-up pool is, and how its sandboxes fare."""

    spec: SandboxSpec
    size: int
    callers: int
    start_s: float
    """Median."""
    step_s: float
    """Median time of a step, that of the model that chooses it included."""
    nodes: tuple[str, ...]
    ready: int | None = None
    runtime: str = "process"
    cpu: float = 0.3
    memory_bytes: int = 90 << 20
    loss_rate: float = 0.0
    """Chance that a step is the sandbox's last."""
    freeze_rate: float = 0.0
    """Chance that it does not answer for a while after a step."""
    freeze_s: float = 12.0
    broken: tuple[str, ...] = ()
    """Sandboxes whose starts fail, ..."""
    why: str = ""
    """... and with which words."""


PLANS = (
    Plan(
        SandboxSpec(name="alfworld", reuse="reset", health=HealthPolicy(interval_s=15.0)),
        size=36,
        callers=38,
        start_s=0.4,
        step_s=1.5,
        nodes=("node-a",),
        loss_rate=0.002,
        freeze_rate=0.004,
    ),
    Plan(
        SandboxSpec(
            name="swe",
            image="rocknroll-sandbox:latest",
            resources=Resources(memory_bytes=1 << 31),
            health=HealthPolicy(interval_s=15.0),
        ),
        size=12,
        callers=6,
        runtime="docker",
        start_s=2.5,
        step_s=6.0,
        nodes=("node-b", "node-c"),
        cpu=0.8,
        memory_bytes=400 << 20,
        loss_rate=0.004,
        broken=("swe-7",),
        why="start_failed: the command that makes it READY ended with code 128: fatal: not a git repository",
    ),
)


class Agenda:
    """What is still to happen, in order of its time."""

    def __init__(self, began: float) -> None:
        self.now = began
        self._order = count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Let `action` happen."""
        heapq.heappush(self._due, (time, next(self._order), action))

    def advance(self, now: float) -> None:
        """Let everything happen that is due by `now`."""
        while self._due and self._due[0][0] <= now:
            self.now, _, action = heapq.heappop(self._due)
            action()
        self.now = max(self.now, now)


@dataclass
class Play:
    """An episode under way in a sandbox."""

    lease: Lease
    script: Script
    step: int = 0
    active: float = 0.0


@dataclass
class Record:
    """What all pools write down together."""

    events: deque[EventFacts] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT))
    counters: Counter[str] = field(default_factory=Counter)
    starts_s: deque[float] = field(default_factory=lambda: deque(maxlen=TIMES_KEPT))
    steps_s: deque[float] = field(default_factory=lambda: deque(maxlen=TIMES_KEPT))
    finished: int = 0
    """Episodes that came to their end."""
    seq: int = 0

    def event(self, time: float, subject: str, kind: str, detail: str) -> None:
        self.seq += 1
        self.events.append(EventFacts(self.seq, time, subject, kind, detail))


class PlayedFleet:
    """One pool and its callers. Looks like a `Fleet` to what reads fleets for alerts."""

    def __init__(self, plan: Plan, agenda: Agenda, record: Record, scripts: Sequence[Script], seed: int) -> None:
        self.plan, self.spec = plan, plan.spec
        self._agenda, self._record, self._scripts = agenda, record, scripts
        self._rng = random.Random(f"{seed} {plan.spec.name}")
        self._pool = Pool(plan.spec, plan.size, max_starting=4, rng=self._rng, ready=plan.ready)
        self._plays: dict[str, Play] = {}
        self._waiting: deque[str] = deque()
        self._frozen_until: dict[str, float] = {}
        self._wakes_at: float | None = None
        self._counts: Counter[str] = Counter()
        for caller in range(plan.callers):
            agenda.at(agenda.now + self._rng.uniform(0.0, THINK_S), partial(self._ask, f"rollout/{caller}"))
        self._settle()

    def rows(self) -> Iterator[SandboxFacts]:
        """Every sandbox, as the dashboard shows it."""
        limits = self.spec.resources
        for index, member in enumerate(self._pool.members.values()):
            live, play = member.state in LIVE, self._plays.get(member.id)
            lease = member.lease
            yield SandboxFacts(
                id=member.id,
                pool=self.spec.name,
                state=member.state.value,
                runtime=self.plan.runtime,
                image=self.spec.image or None,
                node=self.plan.nodes[index % len(self.plan.nodes)],
                restarts=member.restarts,
                last_error=member.last_error or None,
                lease=None if lease is None else LeaseFacts(lease.owner, lease.token, lease.deadline_s),
                since=member.since_s or None,
                task=play.script.task if play else None,
                step=play.step if play else None,
                active=play.active if play else None,
                cpu=self._cpu(member, play) if live else None,
                memory_bytes=self._memory_bytes(member, play) if live else None,
                memory_limit_bytes=limits.memory_bytes,
                cpu_limit=limits.cpus,
            )

    def facts(self) -> PoolFacts:
        """The pool itself."""
        states = Counter(member.state.value for member in self._pool.members.values())
        return PoolFacts(
            name=self.spec.name,
            runtime=self.plan.runtime,
            size=self.plan.size,
            ready=self.plan.ready,
            states={state.value: states[state.value] for state in State},
            waiting=len(self._waiting),
            exhausted=self._pool.exhausted() or None,
            image=self.spec.image or None,
        )

    def playing(self, sandbox_id: str) -> Play | None:
        """What is played there."""
        return self._plays.get(sandbox_id)

    def restart(self, sandbox_id: str) -> None:
        """See `Fleet.restart`. What was broken is mended by it, so that one sees it come back."""
        self.plan = replace(self.plan, broken=tuple(name for name in self.plan.broken if name != sandbox_id))
        self._pool.restart(sandbox_id, self._agenda.now)
        self._settle()

    def remove(self, sandbox_id: str) -> None:
        """See `Fleet.remove`."""
        self._pool.remove(sandbox_id, self._agenda.now)
        self._settle()

    @property
    def runtime(self) -> PlayedFleet:
        """It has no other."""
        return self

    def snapshot(self) -> list[dict[str, Any]]:
        """As `Fleet.snapshot`, as far as alerts read it."""
        return [
            {
                "id": member.id,
                "state": member.state,
                "last_error": member.last_error or None,
                "lease": member.lease and {"deadline": member.lease.deadline_s},
            }
            for member in self._pool.members.values()
        ]

    def metrics(self) -> dict[str, float]:
        """As `Fleet.metrics`, as far as alerts read it."""
        return {"waiting": float(len(self._waiting)), **{kind: float(n) for kind, n in self._counts.items()}}

    def failures(self) -> dict[str, int]:
        """See `Fleet.failures`."""
        return self._pool.failures(self._agenda.now)

    def instances(self) -> set[str]:
        """See `Fleet.instances`: nothing that is made up leaks."""
        return set()

    async def strays(self, keep: Collection[str]) -> list[str]:
        """See `Runtime.strays`."""
        return []

    def _ask(self, owner: str) -> None:
        self._waiting.append(owner)
        self._settle()

    def _settle(self) -> None:
        """As `Fleet` does: let the pool decide, serve those who wait, carry out what was decided."""
        now = self._agenda.now
        self._pool.waiting = len(self._waiting)
        self._pool.tick(now)
        while self._waiting and (lease := self._pool.grant(self._waiting[0], TTL_S, now)) is not None:
            self._waiting.popleft()
            self._plays[lease.sandbox_id] = Play(lease, self._rng.choice(self._scripts), active=now)
            self._next_step(lease)
        for decision in self._pool.take():
            self._carry_out(decision)
        wakes_at = self._pool.next_wakeup_s()
        if wakes_at is not None and (self._wakes_at is None or wakes_at < self._wakes_at):
            self._wakes_at = wakes_at
            self._agenda.at(wakes_at, self._wake)

    def _wake(self) -> None:
        self._wakes_at = None
        self._settle()

    def _carry_out(self, decision: Decision) -> None:
        now = self._agenda.now
        match decision:
            case Start(sandbox_id, generation, _):
                took_s = self._drawn(self.plan.start_s)
                self._agenda.at(now + took_s, lambda: self._started(sandbox_id, generation, took_s))
            case Probe(sandbox_id, generation):
                self._agenda.at(now + ANSWER_S, lambda: self._probed(sandbox_id, generation))
            case Discard(sandbox_id, _, _):
                self._frozen_until.pop(sandbox_id, None)
            case Revoke(lease, _):
                self._plays.pop(lease.sandbox_id, None)
                self._agenda.at(now + self._drawn(THINK_S), lambda: self._ask(lease.owner))
            case Note(sandbox_id, kind, detail):
                self._counts[kind] += 1
                self._record.counters[kind] += 1
                self._record.event(now, sandbox_id, kind, detail)

    def _started(self, sandbox_id: str, generation: int, took_s: float) -> None:
        now = self._agenda.now
        if sandbox_id in self.plan.broken:
            self._pool.start_failed(sandbox_id, generation, now, self.plan.why)
        elif self._pool.started(sandbox_id, generation, now):
            self._record.starts_s.append(took_s)
        self._settle()

    def _probed(self, sandbox_id: str, generation: int) -> None:
        frozen = self._agenda.now < self._frozen_until.get(sandbox_id, 0.0)
        self._pool.probed(sandbox_id, generation, not frozen, self._agenda.now)
        self._settle()

    def _next_step(self, lease: Lease) -> None:
        took_s = self._drawn(self.plan.step_s)
        self._agenda.at(self._agenda.now + took_s, lambda: self._step(lease, took_s))

    def _step(self, lease: Lease, took_s: float) -> None:
        play, now = self._plays.get(lease.sandbox_id), self._agenda.now
        if play is None or play.lease.token != lease.token:
            return
        if now < (thaws := self._frozen_until.get(lease.sandbox_id, 0.0)):
            self._agenda.at(thaws, lambda: self._step(lease, took_s))
            return
        self._pool.heartbeat(lease.sandbox_id, lease.token, now)
        self._record.steps_s.append(took_s)
        play.step, play.active = play.step + 1, now
        if self._rng.random() < self.plan.loss_rate:
            self._pool.lost(lease.sandbox_id, self._pool.members[lease.sandbox_id].generation, now, LOST)
            self._settle()
            return
        if self._rng.random() < self.plan.freeze_rate:
            self._frozen_until[lease.sandbox_id] = now + self._drawn(self.plan.freeze_s)
        if play.step < play.script.turns:
            self._next_step(lease)
            return
        del self._plays[lease.sandbox_id]
        self._record.finished += 1
        self._pool.release(lease.sandbox_id, lease.token, now, recycle=False)
        self._agenda.at(now + self._drawn(THINK_S), lambda: self._ask(lease.owner))
        self._settle()

    def _drawn(self, median_s: float) -> float:
        return median_s * self._rng.lognormvariate(0.0, SPREAD)

    def _cpu(self, member: Member, play: Play | None) -> float:
        """Of a sandbox at work; it is the same until its next step."""
        return self.plan.cpu * self._noise(member, play) if play else 0.0

    def _memory_bytes(self, member: Member, play: Play | None) -> int:
        return int(self.plan.memory_bytes * (0.6 + 0.4 * self._noise(member, play)))

    def _noise(self, member: Member, play: Play | None) -> float:
        return random.Random(f"{member.id} {member.generation} {play and play.step}").uniform(0.5, 1.5)
