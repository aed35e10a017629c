"""What `rock demo` shows: a made-up fleet that plays a recorded run. Everything on the screen comes from these two."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import pairwise

from rocknroll.dashboard.demo.fleet import PLANS, Agenda, Plan, Play, PlayedFleet, Record, Script
from rocknroll.dashboard.demo.run import RecordedRun
from rocknroll.dashboard.snapshot import (
    EVENTS,
    AlertFacts,
    Description,
    Episode,
    EventFacts,
    FleetFacts,
    GroupFacts,
    Latency,
    Snapshot,
    TrajectoryFacts,
)
from rocknroll.dashboard.source import SourceRefused
from rocknroll.sandbox.activity import quantiles
from rocknroll.sandbox.alerts.board import Board
from rocknroll.sandbox.alerts.config import FleetRuleChanges
from rocknroll.sandbox.alerts.fleet import fleet_rules
from rocknroll.sandbox.alerts.readings import FleetReader

WARM_UP_S = 120.0
"""What the fleet has behind it when the demo begins: long enough for a sandbox to be quarantined."""
LOOK_S = 5.0
"""Between two looks for alerts."""
NO_SHELL = "the demo's sandboxes are made up, so there is nothing to open a shell in; `rock up -d` starts real ones"


class DemoSource:
    """A `Source`. `clock`: seconds since the epoch; by the same clock and `seed` all is the same again."""

    title = "demo"

    def __init__(self, seed: int = 0, clock: Callable[[], float] = time.time, plans: Sequence[Plan] = PLANS) -> None:
        self._clock, self._seed, self._plans = clock, seed, plans
        self._began = clock()
        self._run = RecordedRun(clock, self._began)
        self._agenda = Agenda(self._began - WARM_UP_S)
        self._record = Record()
        self._finished: list[tuple[float, int]] = []
        """How many episodes had been finished at each look."""
        self._fleets: dict[str, PlayedFleet] = {}
        self._texts: dict[str, Episode] = {}
        self._board = Board(fleet_rules(FleetRuleChanges()))
        self._reader = FleetReader(self._fleets, {}, "the demo")

    async def snapshot(self) -> Snapshot:
        await self._go_on()
        fleet = FleetFacts(
            address=self.title,
            began=self._began - WARM_UP_S,
            pools=tuple(played.facts() for played in self._fleets.values()),
            sandboxes=tuple(row for played in self._fleets.values() for row in played.rows()),
            events=tuple(self._record.events)[-EVENTS:],
            alerts=tuple(AlertFacts(**alert.to_json()) for alert in self._board.alerts()),
            counters=dict(self._record.counters),
            starts=_latency(self._record.starts_s),
            execs=_latency(self._record.steps_s),
        )
        return Snapshot(self._agenda.now, fleet, await self._run.facts(self._finished_since))

    async def describe(self, sandbox_id: str) -> Description:
        await self._go_on()
        played = self._of(sandbox_id)
        row = next(row for row in played.rows() if row.id == sandbox_id)
        return {
            **asdict(row),
            "spec": played.spec.model_dump(mode="json"),
            "output": await self._output(played.playing(sandbox_id)),
            "events": [asdict(event) for event in self._record.events if event.sandbox == sandbox_id][-50:],
        }

    async def logs(self, sandbox_id: str) -> str:
        await self._go_on()
        return await self._output(self._of(sandbox_id).playing(sandbox_id))

    async def events(self, after: int = 0, limit: int = 1_000) -> tuple[EventFacts, ...]:
        await self._go_on()
        newer = [event for event in self._record.events if event.seq > after]
        return tuple(newer[:limit] if after else newer[-limit:])

    async def restart(self, sandbox_id: str) -> None:
        await self._go_on()
        self._of(sandbox_id).restart(sandbox_id)

    async def remove(self, sandbox_id: str) -> None:
        await self._go_on()
        self._of(sandbox_id).remove(sandbox_id)

    def shell_command(self, sandbox_id: str) -> tuple[str, ...]:
        raise SourceRefused(NO_SHELL)

    async def groups(self, limit: int = 500) -> tuple[GroupFacts, ...]:
        return (await self._run.groups())[:limit]

    async def trajectories(self, limit: int = 500) -> tuple[TrajectoryFacts, ...]:
        return (await self._run.trajectories())[:limit]

    async def trajectory(self, trajectory_id: str) -> Episode:
        return await self._run.trajectory(trajectory_id)

    async def close(self) -> None:
        await self._run.close()

    async def _go_on(self) -> None:
        """Let the fleet live until now, and look for alerts on the way."""
        now = self._clock()
        if not self._fleets:
            scripts = [Script(one.id, one.task, one.turns) for one in await self._run.scripts()]
            for plan in self._plans:
                name = plan.spec.name
                self._fleets[name] = PlayedFleet(plan, self._agenda, self._record, scripts, self._seed)
        while self._agenda.now < now:
            self._agenda.advance(min(now, self._agenda.now + LOOK_S))
            self._finished.append((self._agenda.now, self._record.finished))
            self._board.observe(await self._reader.read(self._agenda.now), self._agenda.now)

    def _finished_since(self, moment: float) -> int:
        """Episodes, to the look before the moment."""
        before = next((count for at, count in reversed(self._finished) if at <= moment), 0)
        return self._record.finished - before

    def _of(self, sandbox_id: str) -> PlayedFleet:
        for played in self._fleets.values():
            if any(row.id == sandbox_id for row in played.rows()):
                return played
        raise SourceRefused(f"there is no sandbox {sandbox_id!r}")

    async def _output(self, play: Play | None) -> str:
        """What was said so far in the episode that is played."""
        if play is None:
            return ""
        if play.script.id not in self._texts:
            self._texts[play.script.id] = await self._run.trajectory(play.script.id)
        turns = self._texts[play.script.id].turns[: play.step + 1]
        said = [turns[0].observation]
        for turn, after in pairwise(turns):
            said += [f"> {turn.action}", after.observation]
        return "\n".join(said)


def _latency(values_s: Sequence[float]) -> Latency | None:
    found = quantiles(values_s)
    return None if found is None else Latency(int(found["count"]), found["p50_s"], found["p95_s"])
