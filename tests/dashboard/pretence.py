"""A fleet and a run that are only said to be there: what is shown follows from a seed, and every action is noted."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from rocknroll.dashboard.snapshot import (
    AlertFacts,
    Episode,
    EventFacts,
    FleetFacts,
    GroupFacts,
    Latency,
    LeaseFacts,
    PoolFacts,
    RunFacts,
    SandboxFacts,
    Snapshot,
    Token,
    TrajectoryFacts,
    TurnFacts,
)
from rocknroll.dashboard.source import SourceAway

NOW = 1_790_000_000.0
WHY = "start_failed: exec: /opt/agent: permission denied"


def sandboxes(count: int, seed: int = 0, ill: int | None = None) -> tuple[SandboxFacts, ...]:
    """`box-0`, …; number `ill` is quarantined and says why."""
    rng = random.Random(seed)
    return tuple(_sandbox(rng, number, number == ill) for number in range(count))


def _sandbox(rng: random.Random, number: int, ill: bool) -> SandboxFacts:
    leased = rng.random() < 0.6 and not ill
    lease = LeaseFacts(f"g{number}.{rng.randrange(8)}", 1000 + number, NOW + rng.randrange(5, 60)) if leased else None
    return SandboxFacts(
        id=f"box-{number}",
        pool="box",
        state="QUARANTINED" if ill else "LEASED" if leased else "READY",
        node=f"node-{number % 3}",
        pid=4000 + number,
        restarts=8 if ill else rng.randrange(2),
        last_error=WHY if ill else None,
        lease=lease,
        since=NOW - rng.randrange(1, 9000),
        step=rng.randrange(30) if leased else None,
        active=NOW - rng.randrange(40) if leased else None,
        cpu=None if ill else round(rng.random(), 2),
        memory_bytes=None if ill else rng.randrange(20, 400) << 20,
        memory_limit_bytes=1 << 30,
        cpu_limit=1.0,
    )


def fleet(found: tuple[SandboxFacts, ...], **more: Any) -> FleetFacts:
    states: dict[str, int] = {}
    for one in found:
        states[one.state] = states.get(one.state, 0) + 1
    events = tuple(
        EventFacts(seq, NOW - 55 + 2 * seq, f"box-{seq % len(found)}", kind, detail)
        for seq, (kind, detail) in enumerate(
            [("started", "on node-0"), ("leased", "g1.0 token=7"), ("lost", "exit code 9"), ("started", "on node-1")]
            * 5
        )
    )
    facts: dict[str, Any] = {
        "address": "rock.sock",
        "began": NOW - 7200,
        "pools": (PoolFacts("box", "process", len(found), None, states),),
        "sandboxes": found,
        "events": events,
        "counters": {"started": 12.0},
        "starts": Latency(12, 0.021, 0.094),
        "execs": Latency(64, 0.0018, 0.0102),
    }
    return FleetFacts(**{**facts, **more})


def run(iterations: int = 12, seed: int = 0, **more: Any) -> RunFacts:
    rng = random.Random(seed)
    rows = tuple(
        {
            "iteration": float(number),
            "batch/success": min(1.0, 0.05 * number + 0.1 * rng.random()),
            "batch/reward": -0.4 + 0.08 * number,
            "success/pick": min(1.0, 0.06 * number),
            "staleness/mean": 0.7,
            "staleness/max": 1.0,
            "idle/engine": 0.12,
            "idle/environments": 0.4,
            "idle/learner": 0.33,
            "objective/entropy": 1.5 / number,
            "rollout/tokens_per_s": 812.0,
            "rollout/episodes_per_min": 96.0,
        }
        for number in range(1, iterations + 1)
    )
    facts: dict[str, Any] = {
        "name": "alfworld",
        "path": "runs/alfworld",
        "state": "running",
        "iterations": 60,
        "rows": rows,
        "began": NOW - 700,
        "updated": NOW - 9,
        "interval_s": 21.0,
        "staleness_bound": 1.0,
        "in_flight": 30,
        "buffered": 41,
        "batch": 96,
    }
    return RunFacts(**{**facts, **more})


ALERT = AlertFacts("crash_loop", "box", "warning", NOW - 300, "A sandbox of box fails again and again: box-7.")
GROUP = GroupFacts("g1", 12, "pick the apple", "pick", 2, 1, 0.4, 0.6, {"completed": 2})
PLAYED = TrajectoryFacts("g1.0", 12, "g1", "pick the apple", "pick", "completed", True, 1.0, 2, 40, 1)
EPISODE = Episode(
    facts=PLAYED,
    turns=(
        TurnFacts("You see an apple.", "go to apple", 0.0, True, (Token("go", "*", {"probability": 0.5}),), "v11"),
        TurnFacts("You are there.", "take apple", 1.0, True, (Token("take", "", {"probability": 0.9}),), "v11"),
    ),
    signals=("probability", "sigma"),
    rest="You won.",
)


class Pretence:
    """A source without a world behind it. `snapshot_now` may be replaced at any time; None: nobody answers."""

    title = "a pretence"

    def __init__(self, snapshot: Snapshot | None) -> None:
        self.snapshot_now = snapshot
        self.done: list[tuple[str, str]] = []
        self.looks = 0
        self.output = "boot\nready\n"

    async def snapshot(self) -> Snapshot:
        self.looks += 1
        if self.snapshot_now is None:
            raise SourceAway("no service answers at rock.sock")
        return self.snapshot_now

    async def describe(self, sandbox_id: str) -> dict[str, Any]:
        one = self._one(sandbox_id)
        events = [
            {"time": NOW - 60, "kind": "start_failed", "detail": one.last_error or ""},
            {"time": NOW - 50, "kind": "quarantined", "detail": "8 failures in 300 s"},
        ]
        row = {"id": one.id, "pool": one.pool, "state": one.state, "last_error": one.last_error}
        return {**row, "spec": {"name": "box"}, "events": events, "output": self.output}

    async def logs(self, sandbox_id: str) -> str:
        return self.output

    async def events(self, after: int = 0, limit: int = 1_000) -> tuple[EventFacts, ...]:
        assert self.snapshot_now is not None and self.snapshot_now.fleet is not None
        return self.snapshot_now.fleet.events

    async def restart(self, sandbox_id: str) -> None:
        self.done.append(("restart", sandbox_id))
        self._become(sandbox_id, "READY")

    async def remove(self, sandbox_id: str) -> None:
        self.done.append(("remove", sandbox_id))
        self._become(sandbox_id, "QUARANTINED")

    def shell_command(self, sandbox_id: str) -> tuple[str, ...]:
        self.done.append(("shell", sandbox_id))
        return ("true",)

    async def groups(self, limit: int = 500) -> tuple[GroupFacts, ...]:
        return (GROUP,)

    async def trajectories(self, limit: int = 500) -> tuple[TrajectoryFacts, ...]:
        return (PLAYED, replace(PLAYED, id="g2.1", group="g2", success=False, reward=-0.2))

    async def trajectory(self, trajectory_id: str) -> Episode:
        return EPISODE

    async def close(self) -> None:
        pass

    def _one(self, sandbox_id: str) -> SandboxFacts:
        assert self.snapshot_now is not None and self.snapshot_now.fleet is not None
        return next(one for one in self.snapshot_now.fleet.sandboxes if one.id == sandbox_id)

    def _become(self, sandbox_id: str, state: str) -> None:
        assert self.snapshot_now is not None and self.snapshot_now.fleet is not None
        changed = tuple(
            replace(one, state=state, last_error=None, lease=None) if one.id == sandbox_id else one
            for one in self.snapshot_now.fleet.sandboxes
        )
        self.snapshot_now = replace(self.snapshot_now, fleet=fleet(changed))
