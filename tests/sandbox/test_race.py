"""Redundant work on real sandboxes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

import pytest

from rocknroll.sandbox.errors import ExecFailed, FleetExhausted, GroupFailed, SandboxLost, SpecInvalid
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.leased import LeasedSandbox
from rocknroll.sandbox.race import Race, race
from rocknroll.sandbox.slowness import FailSlow

pytestmark = pytest.mark.asyncio
MakeFleet = Callable[..., Fleet]
Eventually = Callable[[Callable[[], bool]], Awaitable[None]]


def leased(fleet: Fleet) -> list[str]:
    return [row["id"] for row in fleet.snapshot() if row["lease"]]


def pid_of(fleet: Fleet, sandbox: LeasedSandbox) -> int:
    return int(next(row["pid"] for row in fleet.snapshot() if row["id"] == sandbox.id))


async def test_the_first_results_are_returned_and_the_losers_are_recycled(make_fleet: MakeFleet) -> None:
    async with make_fleet(size=4, reuse="reset") as fleet:
        order: list[str] = []
        everyone = asyncio.Event()

        async def work(sandbox: LeasedSandbox) -> str:
            order.append(sandbox.id)
            place = len(order)
            if place == 4:
                everyone.set()
            await everyone.wait()
            await sandbox.exec("true" if place in (2, 3) else "sleep 1000")
            return sandbox.id

        results = await race(fleet, work, n=4, m=2)
        assert sorted(results) == sorted(order[1:3])
        assert leased(fleet) == []
        assert fleet.metrics()["recycled"] == 2
        assert fleet.metrics()["released"] == 2


async def test_a_lost_sandbox_costs_a_member_and_not_the_group(make_fleet: MakeFleet) -> None:
    async with make_fleet(size=3) as fleet:
        killed: list[int] = []

        async def work(sandbox: LeasedSandbox) -> bytes:
            if len(killed) < 2:
                killed.append(pid_of(fleet, sandbox))
                os.kill(killed[-1], signal.SIGKILL)
                await sandbox.exec("sleep 1000")
            return (await sandbox.exec("echo done")).stdout

        assert await race(fleet, work, n=3, m=3, timeout_s=60.0) == [b"done\n"] * 3


async def test_a_group_whose_members_all_die_fails_and_says_why(make_fleet: MakeFleet) -> None:
    async with make_fleet(size=2) as fleet:

        async def work(sandbox: LeasedSandbox) -> None:
            raise SandboxLost("its host burnt down")

        with pytest.raises(GroupFailed, match=r"4 members died.*burnt down"):
            await race(fleet, work, n=2, m=1, timeout_s=60.0)
        assert leased(fleet) == []


async def test_an_error_of_the_work_itself_ends_the_race_and_reaches_the_caller(make_fleet: MakeFleet) -> None:
    async with make_fleet(size=2) as fleet:
        calls = []

        async def work(sandbox: LeasedSandbox) -> None:
            calls.append(sandbox.id)
            if len(calls) == 1:
                await sandbox.exec("sleep 1000")
            (await sandbox.exec("exit 3")).check()

        with pytest.raises(ExecFailed, match="exit code 3"):
            await race(fleet, work, n=2, m=1)
        assert leased(fleet) == []


async def test_a_race_ends_at_its_deadline(make_fleet: MakeFleet, eventually: Eventually) -> None:
    async with make_fleet(size=2) as fleet:
        await eventually(lambda: fleet.metrics()["state_READY"] == 2)

        async def work(sandbox: LeasedSandbox) -> None:
            await sandbox.exec("sleep 1000")

        with pytest.raises(GroupFailed, match="0 of 1 wanted members finished; the deadline has passed"):
            await race(fleet, work, n=4, m=1, timeout_s=0.3)
        assert leased(fleet) == []


async def test_a_cancelled_race_leaves_no_sandbox_leased(make_fleet: MakeFleet, eventually: Eventually) -> None:
    async with make_fleet(size=2) as fleet:
        racing = asyncio.create_task(race(fleet, lambda sandbox: sandbox.exec("sleep 1000"), n=3, m=1))
        await eventually(lambda: len(leased(fleet)) == 2)
        racing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await racing
        assert leased(fleet) == []


async def test_a_fleet_that_can_start_nothing_ends_the_race(make_fleet: MakeFleet) -> None:
    async with make_fleet(env=True, kwargs={"broken": True}) as fleet:
        with pytest.raises(FleetExhausted, match="cannot be made"):
            await race(fleet, lambda sandbox: sandbox.exec("true"), n=1, m=1)
    with pytest.raises(SpecInvalid):
        await race(fleet, lambda sandbox: sandbox.exec("true"), n=1, m=2)


async def test_a_member_that_is_slower_than_its_peers_is_replaced(make_fleet: MakeFleet) -> None:
    async with make_fleet(size=5) as fleet:
        running = Race[str](fleet, size=5, wanted=5, slowness=FailSlow(), timeout_s=120.0)
        slow: list[str] = []

        async def work(sandbox: LeasedSandbox) -> str:
            if not slow:
                slow.append(str(sandbox.token))
            latency_s = 0.5 if str(sandbox.token) in slow else 0.1
            # Said to take, not taken: the clock of the race orders the steps, their latencies are what is judged.
            for _ in range(200):
                await sandbox.request("fence", {})
                running.step_took(sandbox, latency_s)
            return str(sandbox.token)

        results = await running.run(work)
        assert len(results) == 5
        assert slow[0] not in results
        assert leased(fleet) == []
