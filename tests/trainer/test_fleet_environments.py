"""Environments leased from fleets: by domain, with seeded faults, recycled when they broke or were slow."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rocknroll.envs import faulty
from rocknroll.envs.text import Task
from rocknroll.sandbox.errors import EnvError, EnvHung, LeaseTimeout
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.sandbox.slowness import FailSlow, Suspected
from rocknroll.sandbox.spec import EnvSpec, SandboxSpec
from rocknroll.trainer.rollout.environments import FleetEnvironments

PLAYTHINGS = Path(__file__).parents[1] / "sandbox"
TASK = Task("t", "kind", domain="play")


def spec(name: str, greeting: str, **faults: float) -> SandboxSpec:
    inner = {"entry_point": "playthings:Plaything", "kwargs": {"greeting": greeting}, "faults": faults}
    env = EnvSpec(entry_point=faulty.ENTRY_POINT, kwargs=inner, modules=("playthings",), python_path=(PLAYTHINGS,))
    return SandboxSpec(name=name, env=env, reuse="reset")


@pytest_asyncio.fixture
async def fleets() -> AsyncIterator[dict[str, Fleet]]:
    async with (
        Fleet(spec("play", "hello"), 1, ProcessRuntime()) as play,
        Fleet(spec("other", "good day", error_rate=0.5), 1, ProcessRuntime()) as other,
    ):
        yield {"play": play, "other": other}


def make(fleets: dict[str, Fleet], **settings: Any) -> FleetEnvironments:
    return FleetEnvironments(fleets, **({"lease_s": 60.0, "step_timeout_s": 20.0} | settings))


async def process(environments: FleetEnvironments, fleets: dict[str, Fleet]) -> int:
    """Which process plays the next episode."""
    async with environments.lease("e", TASK):
        (row,) = fleets["play"].snapshot()
        pid: int = row["pid"]
        return pid


async def play(environments: FleetEnvironments, action: str) -> str:
    """The observation after the only action of an episode."""
    async with environments.lease("e", TASK) as env:
        await env.reset()
        return (await env.step(action))[0]


@pytest.mark.asyncio
async def test_a_task_is_played_in_its_own_domain(fleets: dict[str, Fleet]) -> None:
    environments = make(fleets)
    async with environments.lease("e", TASK) as env:
        assert (await env.reset(options={"game": "a"}))[0] == "hello"
    async with environments.lease("e", Task("t", "kind", domain="other")) as env:
        assert (await env.reset())[0] == "good day"


@pytest.mark.asyncio
async def test_a_sandbox_is_used_again_unless_its_episode_broke(fleets: dict[str, Fleet]) -> None:
    environments = make(fleets)
    first = await process(environments, fleets)
    assert await process(environments, fleets) == first
    with pytest.raises(EnvError):
        await play(environments, "raise")
    assert await process(environments, fleets) != first


@pytest.mark.asyncio
async def test_a_slow_sandbox_is_counted_and_replaced_when_its_episode_ends(
    fleets: dict[str, Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    environments = make(fleets)
    first = await process(environments, fleets)
    monkeypatch.setattr(FailSlow, "observe", lambda self, member, latency_s, now_s: Suspected(member, 5.0, 9.0))
    async with environments.lease("e", TASK) as env:
        await env.reset()
        assert (await env.step("go"))[0] == "go 1"
        assert (await env.step("on"))[0] == "on 2", "the episode itself goes on"
    assert environments.metrics()["slow"] == 1
    assert environments.metrics()["busy_s"] > 0
    assert await process(environments, fleets) != first


@pytest.mark.asyncio
async def test_what_goes_wrong_in_an_episode_follows_from_its_id(fleets: dict[str, Fleet]) -> None:
    environments = make(fleets, faulty=["other"])

    async def fates(owner: str) -> list[bool]:
        found = []
        async with environments.lease(owner, Task("t", "kind", domain="other")) as env:
            await env.reset()
            for _ in range(20):
                try:
                    await env.step("go")
                    found.append(True)
                except EnvError:
                    found.append(False)
        return found

    assert await fates("g0.0.0") == await fates("g0.0.0") != await fates("g0.0.1")


@pytest.mark.asyncio
async def test_a_step_and_a_reset_have_deadlines_of_their_own(fleets: dict[str, Fleet]) -> None:
    environments = make(fleets, step_timeout_s=0.3, reset_timeout_s=20.0)
    with pytest.raises(EnvHung, match=r"0\.3"):
        await play(environments, "hang")


@pytest.mark.asyncio
async def test_an_episode_does_not_wait_for_a_sandbox_for_ever(fleets: dict[str, Fleet]) -> None:
    environments = make(fleets, wait_s=0.1)
    async with make(fleets).lease("holder", TASK):
        with pytest.raises(LeaseTimeout):
            async with environments.lease("e", TASK):
                pass
