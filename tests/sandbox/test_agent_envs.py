"""Several environments in one sandbox, each in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rocknroll.envs.remote import RemoteEnv
from rocknroll.sandbox.errors import EnvCrashed, EnvHung, QuotaExceeded
from rocknroll.sandbox.fleet import Fleet

pytestmark = pytest.mark.asyncio
MakeFleet = Callable[..., Fleet]


async def test_environments_side_by_side_do_not_disturb_each_other(make_fleet: MakeFleet) -> None:
    async with make_fleet(env=True) as fleet, await fleet.lease("me") as sandbox:
        envs = [RemoteEnv(sandbox, name=str(n)) for n in range(4)]
        infos = await asyncio.gather(*(env.reset() for env in envs))
        assert len({info["pid"] for _, info in infos}) == 4
        slow = RemoteEnv(sandbox, name="3", step_timeout_s=0.3)
        slow._made = True
        hung = asyncio.create_task(slow.step("hang"))
        with pytest.raises(EnvCrashed, match="exit code 7"):
            await envs[2].step("crash")
        for n in range(3):
            assert (await envs[1].step("go"))[0] == f"go {n + 1}"
        assert (await envs[0].step("go"))[0] == "go 1"
        with pytest.raises(EnvHung):
            await hung
        # Only the end of the specification's environment is the fleet's business.
        assert (await envs[0].step("go"))[0] == "go 2"
        assert not sandbox.lost
        await envs[1].close()
        with pytest.raises(EnvCrashed, match="no environment '1'"):
            await sandbox.request("env.step", {"env": "1"}, b"")


async def test_the_next_holder_finds_the_environment_of_the_specification_and_no_other(make_fleet: MakeFleet) -> None:
    async with make_fleet(env=True, reuse="reset") as fleet:
        first = await fleet.lease("first")
        _, kept = await RemoteEnv(first).reset()
        await RemoteEnv(first, name="mine").reset()
        await first.release()
        second = await fleet.lease("second")
        with pytest.raises(EnvCrashed, match="no environment 'mine'"):
            await second.request("env.step", {"env": "mine"}, b"")
        assert (await RemoteEnv(second).reset())[1]["pid"] == kept["pid"]


async def test_the_number_of_environments_is_limited(make_fleet: MakeFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    from rocknroll.sandbox.agent.envs import MAX_ENVS

    async with make_fleet(env=True) as fleet, await fleet.lease("me") as sandbox:
        for n in range(1, MAX_ENVS):
            await RemoteEnv(sandbox, name=str(n)).make()
        with pytest.raises(QuotaExceeded):
            await RemoteEnv(sandbox, name="one more").make()
