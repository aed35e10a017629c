"""Environments played inside sandboxes: results, failures by type, and recovery."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from gymnasium.spaces import Text

from rocknroll.envs.remote import RemoteEnv
from rocknroll.envs.sandboxed import SandboxedEnv
from rocknroll.sandbox.errors import EnvCrashed, EnvError, EnvHung, SandboxError, SpecInvalid
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.sandbox.spec import EnvSpec, SandboxSpec

PLAYTHINGS = Path(__file__).parents[1] / "sandbox"
SPEC = SandboxSpec(
    name="box", env=EnvSpec(entry_point="playthings:Plaything", python_path=(PLAYTHINGS,)), reuse="reset"
)


@pytest_asyncio.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet(SPEC, 1, ProcessRuntime()) as fleet:
        yield fleet


@pytest.mark.asyncio
async def test_an_episode_comes_through_unchanged(fleet: Fleet) -> None:
    async with await fleet.lease("me") as sandbox:
        env = RemoteEnv(sandbox)
        observation, info = await env.reset(seed=3, options={"game": "a/b"})
        assert (observation, info["options"]) == ("hello", {"game": "a/b"})
        assert (await env.reset(seed=3))[1]["draw"] == info["draw"]
        assert await env.step("go") == ("go 1", 0.5, False, False, {"steps": 1})
        assert (await env.step("win"))[2] is True


@pytest.mark.asyncio
async def test_the_environment_is_kept_from_one_holder_to_the_next(fleet: Fleet) -> None:
    pids = set()
    for owner in ("first", "second"):
        async with await fleet.lease(owner) as sandbox:
            pids.add(((await RemoteEnv(sandbox).reset())[1]["pid"], fleet.snapshot()[0]["pid"]))
    assert len(pids) == 1


@pytest.mark.asyncio
async def test_an_equal_environment_is_not_made_again_and_another_one_is(fleet: Fleet) -> None:
    async with await fleet.lease("me") as sandbox:
        same = RemoteEnv(sandbox, "playthings:Plaything", {})
        assert (await same.reset())[0] == "hello"
        other = RemoteEnv(sandbox, "playthings:Plaything", {"greeting": "moin"})
        assert (await other.reset())[0] == "moin"


@pytest.mark.asyncio
async def test_an_exception_of_the_environment_is_typed_and_the_sandbox_stays(fleet: Fleet) -> None:
    async with await fleet.lease("me") as sandbox:
        env = RemoteEnv(sandbox)
        await env.reset()
        with pytest.raises(EnvError, match="ValueError: no such drawer") as caught:
            await env.step("raise")
        assert caught.value.error_type == "ValueError"
        assert 'raise ValueError("no such drawer")' in caught.value.traceback
        assert (await env.reset())[0] == "hello"


@pytest.mark.asyncio
async def test_a_value_that_cannot_cross_is_an_error_not_a_string(fleet: Fleet) -> None:
    async with await fleet.lease("me") as sandbox:
        env = RemoteEnv(sandbox)
        await env.reset()
        with pytest.raises(EnvError, match=r"builtins\.object cannot leave"):
            await env.step("object")
        with pytest.raises(SpecInvalid, match="object"):
            await env.step(object())


@pytest.mark.asyncio
async def test_a_hung_step_ends_at_its_deadline_and_the_sandbox_is_replaced(fleet: Fleet) -> None:
    sandbox = await fleet.lease("me")
    env = RemoteEnv(sandbox, step_timeout_s=0.3)
    await env.reset()
    began_s = time.monotonic()
    with pytest.raises(EnvHung, match=r"0\.3 s"):
        await env.step("hang")
    assert time.monotonic() - began_s < 5.0
    with pytest.raises(SandboxError):
        await env.step("go")
    await sandbox.release()
    async with await fleet.lease("next", timeout_s=30.0) as fresh:
        assert (await RemoteEnv(fresh).reset())[0] == "hello"
    assert "env_hung" in [event.kind for event in fleet.events()]
    assert fleet.metrics()["started"] >= 2


@pytest.mark.asyncio
async def test_a_crashed_environment_is_typed_and_the_sandbox_is_replaced(fleet: Fleet) -> None:
    async with await fleet.lease("me") as sandbox:
        env = RemoteEnv(sandbox)
        await env.reset()
        with pytest.raises(EnvCrashed):
            await env.step("crash")
    async with await fleet.lease("next", timeout_s=30.0) as fresh:
        assert (await RemoteEnv(fresh).reset())[0] == "hello"


@pytest.mark.asyncio
async def test_pings_are_answered_while_the_environment_thinks(fleet: Fleet) -> None:
    async with await fleet.lease("me") as sandbox:
        env = RemoteEnv(sandbox, step_timeout_s=60.0)
        await env.reset()
        thinking = asyncio.create_task(env.step("hang"))
        for _ in range(3):
            await sandbox.request("fence", {}, timeout_s=5.0)
        assert not thinking.done()
        thinking.cancel()
        await sandbox.release(recycle=True)


@pytest.mark.asyncio
async def test_an_environment_made_by_a_fresh_interpreter_behaves_the_same() -> None:
    assert SPEC.env is not None
    spec = SPEC.model_copy(update={"env": SPEC.env.model_copy(update={"preload": False})})
    async with Fleet(spec, 1, ProcessRuntime()) as fleet, await fleet.lease("me") as sandbox:
        env = RemoteEnv(sandbox)
        await env.reset()
        assert (await env.step("go"))[0] == "go 1"
        with pytest.raises(EnvError):
            await env.step("raise")


def test_the_synchronous_wrapper_plays_and_recovers() -> None:
    with SandboxedEnv(SPEC, step_timeout_s=0.5) as env:
        assert env.action_space == Text(64)
        assert env.reset(seed=1)[0] == "hello"
        assert env.step("go")[0] == "go 1"
        with pytest.raises(EnvHung):
            env.step("hang")
        assert env.reset()[0] == "hello"
        assert env.step("go")[0] == "go 1"


def test_the_synchronous_wrapper_says_why_an_environment_cannot_be_made() -> None:
    broken = SPEC.model_copy(update={"env": EnvSpec(entry_point="playthings:Nothing", python_path=(PLAYTHINGS,))})
    with pytest.raises(SandboxError, match="Nothing"):
        SandboxedEnv(broken)
