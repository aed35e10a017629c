"""The sandboxes of a run in its own process, as `rock top --run` shows them: a real fleet, and real episodes in it."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import pytest
from clusters import playthings
from pretence import Pretence, fleet, sandboxes
from test_top_keys import opened, screen
from test_top_run import made  # noqa: F401
from waiting_top import until

from rocknroll.dashboard.pages import SandboxPage
from rocknroll.dashboard.run_source import FLEET_S, RunSource
from rocknroll.dashboard.snapshot import Snapshot
from rocknroll.dashboard.source import SourceAway, SourceRefused
from rocknroll.dashboard.sources import FleetAndRun
from rocknroll.envs.text import Task
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.trainer.rollout.environments import FleetEnvironments
from rocknroll.trainer.rollout.showing import TEXT_CHARS, TURNS, Played, shown
from rocknroll.trainer.run_folder import RunFolder

TASK = Task("fetch/apple", "fetch", {})


@pytest.mark.asyncio
async def test_what_is_played_in_a_runs_own_sandboxes_is_read_turn_by_turn(made: RunFolder) -> None:  # noqa: F811
    source = FleetAndRun(Pretence(None), RunSource(made.path), asked=False)
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(Fleet(playthings(), 2, ProcessRuntime()))
        environments = FleetEnvironments({"": own}, lease_s=60.0, step_timeout_s=60.0)
        await stack.enter_async_context(shown({"box": own}, environments.playing, made.fleet_file))
        app, pilot = await stack.enter_async_context(opened(source, size=(170, 45)))
        env = await stack.enter_async_context(environments.lease("episode-1", TASK))
        await env.reset()
        await env.step("look")
        await pilot.press("2")
        await until(pilot, lambda: "fetch/apple" in screen(app))
        await pilot.press("slash", *"episode-1", "enter", "enter")
        await until(pilot, lambda: isinstance(app.screen, SandboxPage) and "> look  +0.5" in screen(app))
        await env.step("win")
        await until(pilot, lambda: "> win  +0.5" in screen(app) and "win 2" in screen(app))
        assert "Playing fetch/apple" in screen(app)
        await pilot.press("r", "y")
        await until(pilot, lambda: any("belongs to `roll train`" in note.message for note in app._notifications))
        (row,) = (row for row in own.snapshot() if row["lease"])
        with pytest.raises(SourceRefused, match="belongs to `roll train`"):
            await source.remove(row["id"])
        assert [event.kind for event in await source.events()].count("leased") == 1
    assert not made.fleet_file.exists()
    assert environments.playing == {}
    assert (await RunSource(made.path).snapshot()).fleet is None


@pytest.mark.asyncio
async def test_a_picture_that_is_old_or_broken_is_not_taken_for_what_is(made: RunFolder) -> None:  # noqa: F811
    source = RunSource(made.path)
    async with Fleet(playthings(), 1, ProcessRuntime()) as own, shown({"box": own}, {}, made.fleet_file):
        await _written(made)
        now = json.loads(made.fleet_file.read_text())
        assert (await source.snapshot()).fleet is not None
    made.fleet_file.write_text(json.dumps({**now, "at": now["at"] - FLEET_S}))
    assert (await source.snapshot()).fleet is None
    with pytest.raises(SourceRefused, match="does not play in sandboxes now"):
        await source.describe("box-0")
    made.fleet_file.write_text("{")
    with pytest.raises(SourceRefused, match=r"fleet.json is no JSON .*Remove it"):
        await source.snapshot()


async def _written(folder: RunFolder) -> None:
    async with asyncio.timeout(60):
        while not folder.fleet_file.exists():
            await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_a_manager_that_was_named_or_answers_is_shown_in_place_of_the_run_s_own() -> None:
    managers = Pretence(Snapshot(0.0, fleet(sandboxes(2))))
    runs = Pretence(Snapshot(0.0, fleet(sandboxes(5))))
    both = FleetAndRun(managers, runs, asked=False)

    async def seen() -> tuple[int | None, str]:
        found = await both.snapshot()
        return (None if found.fleet is None else len(found.fleet.sandboxes)), found.away

    assert await seen() == (2, "")
    await both.restart("box-0")
    managers.snapshot_now = None
    assert await seen() == (None, "no service answers at rock.sock")
    assert (managers.done, runs.done) == ([("restart", "box-0")], [])

    both = FleetAndRun(managers, runs, asked=False)
    assert await seen() == (5, "")
    await both.restart("box-1")
    assert runs.done == [("restart", "box-1")]
    with pytest.raises(SourceAway):
        await managers.snapshot()


def test_only_the_newest_turns_and_the_beginnings_of_texts_are_kept() -> None:
    played = Played("t")
    played.begin("x" * 10_000)
    for turn in range(TURNS + 3):
        played.add(str(turn), "y" * 10_000, 0.0)
    assert [turn.action for turn in played.turns] == [str(turn) for turn in range(3, TURNS + 3)]
    assert len(played.begun) == TEXT_CHARS and {len(turn.observation) for turn in played.turns} == {TEXT_CHARS}
    played.begin("again")
    assert (played.begun, list(played.turns)) == ("again", [])
