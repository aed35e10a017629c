"""The demo: a fleet that only does what a real one can, a run that was really played, and both the same every time."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting_top import until

from rocknroll.dashboard.app import Dashboard
from rocknroll.dashboard.demo.record import RECORDING
from rocknroll.dashboard.demo.source import DemoSource
from rocknroll.dashboard.snapshot import FleetFacts, RunFacts, Snapshot
from rocknroll.dashboard.source import SourceRefused
from rocknroll.dashboard.verdict import Level, judge
from rocknroll.sandbox.lifecycle import Event, State, advance

BEGAN = 1_790_000_000.0
SHIPPED_BYTES = 150_000


class Clock:
    now = BEGAN

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest_asyncio.fixture
async def demo(clock: Clock) -> AsyncIterator[DemoSource]:
    source = DemoSource(0, clock)
    yield source
    await source.close()


def fleet_of(snapshot: Snapshot) -> FleetFacts:
    assert snapshot.fleet is not None
    return snapshot.fleet


def run_of(snapshot: Snapshot) -> RunFacts:
    assert snapshot.run is not None
    return snapshot.run


async def course(seed: int, *steps_s: float) -> list[Snapshot]:
    """What is seen at first, and after each step of the clock."""
    clock = Clock()
    source = DemoSource(seed, clock)
    seen = [await source.snapshot()]
    for step_s in steps_s:
        clock.now += step_s
        seen.append(await source.snapshot())
    await source.close()
    return seen


@pytest.mark.asyncio
async def test_the_same_seed_and_clock_give_the_same_demo() -> None:
    first, second, other = [await course(seed, 7.0, 20.0) for seed in (0, 0, 1)]
    assert first == second
    assert fleet_of(first[-1]).sandboxes != fleet_of(other[-1]).sandboxes


@settings(max_examples=3)
@given(st.integers(0, 1_000))
def test_every_sandbox_of_any_demo_goes_the_ways_of_the_real_state_machine(seed: int) -> None:
    async def go() -> None:
        clock = Clock()
        source = DemoSource(seed, clock)
        await source.snapshot()
        clock.now += 60.0
        events, seen = await source.events(limit=1_000_000), fleet_of(await source.snapshot())
        await source.close()
        for sandbox in seen.sandboxes:
            state = State.STARTING
            for event in events:
                if event.sandbox == sandbox.id and event.kind in set(Event):
                    state = advance(state, Event(event.kind))
            assert state == sandbox.state, sandbox.id

    asyncio.run(go())


@pytest.mark.asyncio
async def test_it_shows_something_to_find_and_what_is_restarted_comes_back(demo: DemoSource, clock: Clock) -> None:
    seen = await demo.snapshot()
    (ill,) = [one for one in fleet_of(seen).sandboxes if one.state == State.QUARANTINED]
    assert judge(seen).level is Level.DEGRADED and ill.id in judge(seen).reasons[0]
    assert {alert.rule for alert in fleet_of(seen).alerts} == {"crash_loop", "quarantine"}
    assert all(ill.id in alert.text for alert in fleet_of(seen).alerts)
    described = await demo.describe(ill.id)
    assert described["events"][-1]["kind"] == "quarantined" and "not a git repository" in described["last_error"]
    await demo.restart(ill.id)
    clock.now += 60.0
    seen = await demo.snapshot()
    assert next(one.state for one in fleet_of(seen).sandboxes if one.id == ill.id) in ("READY", "LEASED")
    assert next(alert for alert in fleet_of(seen).alerts if alert.rule == "quarantine").resolved is not None


@pytest.mark.asyncio
async def test_what_is_removed_stays_away(demo: DemoSource, clock: Clock) -> None:
    await demo.remove("alfworld-3")
    clock.now += 60.0
    states = {one.id: one.state for one in fleet_of(await demo.snapshot()).sandboxes}
    assert states["alfworld-3"] == "QUARANTINED"


@pytest.mark.asyncio
async def test_sandboxes_play_the_recorded_episodes(demo: DemoSource) -> None:
    seen = fleet_of(await demo.snapshot())
    recorded = {one.task for one in await demo.trajectories(1_000)}
    playing = [one for one in seen.sandboxes if one.state == "LEASED" and one.step]
    assert playing and {one.task for one in playing} & recorded
    text = await demo.logs(playing[0].id)
    assert text.count("\n> ") == playing[0].step
    with pytest.raises(SourceRefused, match="made up"):
        demo.shell_command(playing[0].id)
    with pytest.raises(SourceRefused, match="there is no sandbox 'nobody'"):
        await demo.logs("nobody")


@pytest.mark.asyncio
async def test_the_run_goes_on_at_its_own_pace_to_its_end(demo: DemoSource, clock: Clock) -> None:
    first = run_of(await demo.snapshot())
    assert first.state == "running" and 0 < len(first.rows) < first.iterations
    assert first.updated is not None and first.updated <= clock.now
    assert {one.iteration for one in await demo.trajectories(1_000)} <= set(range(len(first.rows) + 1))
    assert {row.iteration for row in first.evaluations} <= set(range(len(first.rows) + 1))
    clock.now += 400.0
    last = run_of(await demo.snapshot())
    assert last.state == "finished" and len(last.rows) == last.iterations
    assert {one.iteration for one in await demo.groups(1_000)} > {one.iteration for one in await demo.groups(2)}


@pytest.mark.asyncio
async def test_its_tokens_have_credit_and_what_the_critics_disagree_on(demo: DemoSource) -> None:
    newest = (await demo.trajectories(1))[0]
    episode = await demo.trajectory(newest.id)
    assert {"probability", "advantage", "gamma", "sigma"} <= set(episode.signals)
    tokens = [token for turn in episode.turns for token in turn.tokens]
    assert any(token.colours.get("gamma") for token in tokens) and any(token.colours.get("sigma") for token in tokens)


def test_the_recording_is_small() -> None:
    assert RECORDING.stat().st_size < SHIPPED_BYTES


@pytest.mark.asyncio
async def test_the_application_opens_on_it(clock: Clock) -> None:
    app = Dashboard(DemoSource(0, clock), interval_s=0.05, clock=clock)
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.verdict is not None)
        assert app.verdict is not None and app.verdict.level is Level.DEGRADED


def test_it_needs_no_fleet_and_prints_what_scripts_rely_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rocknroll.sandbox.cli", "demo", "--once"]
    done = subprocess.run([*command, "--json"], cwd=tmp_path, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["verdict"] == "degraded" and told["reasons"] and sum(told["counts"].values()) == 48
    assert [alert["resolved"] for alert in told["alerts"]] == [None] * len(told["alerts"]) != []
    assert not list(tmp_path.iterdir())
