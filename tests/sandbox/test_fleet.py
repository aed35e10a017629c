"""Fleets of real sandboxes: death, recovery, exhaustion, and leaving nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from playthings import HERE, descendants, until

from rocknroll.sandbox.errors import FleetClosed, FleetExhausted, LeaseTimeout, SandboxError, SpecInvalid
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.lifecycle import State
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.sandbox.spec import EnvSpec, HealthPolicy, RestartPolicy, SandboxSpec
from rocknroll.sandbox.store import Store

pytestmark = pytest.mark.asyncio
MakeFleet = Callable[..., Fleet]
Eventually = Callable[[Callable[[], bool]], Awaitable[None]]


def ready(fleet: Fleet) -> int:
    return int(fleet.metrics()[f"state_{State.READY}"])


def tree(fleet: Fleet) -> list[int]:
    """The processes of the first sandbox, outermost first."""
    pid = fleet.snapshot()[0]["pid"]
    return [pid, *sorted(descendants(pid))]


@pytest.mark.parametrize("level", ["namespaces", "plain"])
@pytest.mark.parametrize("position", [0, -1], ids=["outermost", "innermost"])
async def test_any_killed_process_is_noticed_and_replaced(
    make_fleet: MakeFleet, eventually: Eventually, level: str, position: int
) -> None:
    # Probes are an hour apart: it is the death itself that is noticed.
    async with make_fleet(level=level, env=True, health=HealthPolicy(interval_s=3600)) as fleet:
        await eventually(lambda: ready(fleet) == 1)
        before = tree(fleet)
        os.kill(before[position], signal.SIGKILL)
        await eventually(lambda: fleet.metrics()["started"] == 2)
        assert not set(before) & set(tree(fleet))
        async with await fleet.lease("me") as sandbox:
            assert (await sandbox.exec("echo back")).stdout == b"back\n"
        assert fleet.snapshot()[0]["restarts"] + fleet.metrics().get("recycled", 0) >= 1


async def test_a_dead_forkserver_takes_its_sandboxes_along_and_all_come_back(
    make_fleet: MakeFleet, eventually: Eventually
) -> None:
    async with make_fleet(size=3) as fleet:
        await eventually(lambda: ready(fleet) == 3)
        before = set(descendants(os.getpid()))
        (server,) = {int(Path(f"/proc/{row['pid']}/stat").read_text().split()[3]) for row in fleet.snapshot()}
        os.kill(server, signal.SIGKILL)
        await eventually(lambda: fleet.metrics()["started"] == 6)
        assert not before & set(descendants(os.getpid()))


async def test_a_frozen_sandbox_is_found_by_its_probes(make_fleet: MakeFleet, eventually: Eventually) -> None:
    health = HealthPolicy(interval_s=0.1, timeout_s=0.3, failures=2, window=3)
    async with make_fleet(health=health) as fleet:
        await eventually(lambda: ready(fleet) == 1)
        for pid in reversed(tree(fleet)):
            os.kill(pid, signal.SIGSTOP)
        await eventually(lambda: fleet.metrics()["started"] == 2)
        kinds = [event.kind for event in fleet.events()]
        assert kinds.index("probe_missed") < kinds.index("lost") < kinds.index("restarted")


async def test_leases_are_handed_out_in_the_order_they_were_asked_for(make_fleet: MakeFleet) -> None:
    async with make_fleet(reuse="reset") as fleet:
        order: list[int] = []

        async def hold(number: int) -> None:
            async with await fleet.lease(f"owner {number}"):
                order.append(number)

        await asyncio.gather(*(hold(number) for number in range(8)))
        assert order == list(range(8))


async def test_a_cancelled_wait_costs_nobody_a_sandbox(make_fleet: MakeFleet, eventually: Eventually) -> None:
    async with make_fleet(reuse="reset") as fleet:
        await eventually(lambda: ready(fleet) == 1)
        held = await fleet.lease("holder")
        waiting = asyncio.create_task(fleet.lease("impatient"))
        await asyncio.sleep(0)
        waiting.cancel()
        await held.release()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await (await fleet.lease("next", timeout_s=20.0)).release()
        async with await fleet.lease("holder"):
            with pytest.raises(LeaseTimeout, match="LEASED"):
                await fleet.lease("late", timeout_s=0.05)


async def test_an_environment_that_cannot_be_made_fails_the_lease_at_once_and_says_why(make_fleet: MakeFleet) -> None:
    async with make_fleet(size=4, env=True, kwargs={"broken": True}) as fleet:
        with pytest.raises(FleetExhausted, match="cannot be made"):
            await fleet.lease("me", timeout_s=60.0)


async def test_a_module_that_does_not_exist_is_named(folder: Path) -> None:
    spec = SandboxSpec(env=EnvSpec(entry_point="no.such.module:Env"))
    async with Fleet(spec, 1, ProcessRuntime(folder=folder)) as fleet:
        with pytest.raises(FleetExhausted, match=r"no\.such\.module"):
            await fleet.lease("me", timeout_s=60.0)


async def test_a_crash_looping_command_ends_in_quarantine_with_its_output(make_fleet: MakeFleet) -> None:
    restart = RestartPolicy(limit=3, backoff_s=0.0)
    async with make_fleet(command=("sh", "-c", "echo no disk; exit 9"), restart=restart) as fleet:
        with pytest.raises(FleetExhausted, match="no disk"):
            await fleet.lease("me", timeout_s=60.0)
        row = fleet.snapshot()[0]
        assert (row["state"], row["restarts"]) == (State.QUARANTINED, 2)
        assert "code 9" in row["last_error"]


async def test_nothing_is_left_after_close(make_fleet: MakeFleet, folder: Path) -> None:
    before = set(descendants(os.getpid()))
    async with make_fleet(size=3, env=True) as fleet:
        sandbox = await fleet.lease("me")
        await sandbox.exec("(setsid sleep 1000 &)")
        assert list(folder.iterdir())
    assert set(descendants(os.getpid())) <= before
    assert list(folder.iterdir()) == []
    with pytest.raises(FleetClosed):
        await fleet.lease("late")
    with pytest.raises(SandboxError):
        await sandbox.exec("true")


async def test_nothing_is_left_when_closed_in_the_middle_of_starting(make_fleet: MakeFleet, folder: Path) -> None:
    async def fail_after(wait_s: float) -> None:
        async with make_fleet(size=4, env=True):
            await asyncio.sleep(wait_s)
            raise ZeroDivisionError

    for wait_s in (0.0, 0.05, 0.3):
        with pytest.raises(ZeroDivisionError):
            await fail_after(wait_s)
        assert descendants(os.getpid()) == []
        assert list(folder.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
async def test_nothing_is_left_when_the_owner_is_gone(folder: Path, number: int) -> None:
    owner = subprocess.Popen(
        [sys.executable, str(HERE / "owner.py"), str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert owner.stdout is not None
    assert await asyncio.to_thread(owner.stdout.readline) == b"leased\n"
    left = descendants(owner.pid)
    assert len(left) > 4
    owner.send_signal(number)
    owner.wait(timeout=30)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left), "every process of the fleet is gone")
    until(lambda: list(folder.iterdir()) == [], "the folder is empty")
    owner.stdout.close()


async def test_events_and_leases_are_rows_and_tokens_survive_the_fleet(make_fleet: MakeFleet, folder: Path) -> None:
    path = folder / "fleet.db"
    async with make_fleet(store=path) as fleet:
        first = await fleet.lease("first")
        await first.release()
    async with make_fleet(store=path) as fleet:
        second = await fleet.lease("second")
        assert second.token > first.token
        assert [lease.owner for lease in Store(path).open_leases()] == ["second"]
    kinds = [event.kind for event in Store(path).events()]
    assert kinds[:3] == ["started", "leased", "recycled"]
    assert kinds[-1] == "stopped"
    assert Store(path).open_leases() == []


async def test_a_snapshot_shows_what_scripts_rely_on(make_fleet: MakeFleet) -> None:
    async with make_fleet() as fleet, await fleet.lease("me") as sandbox:
        (row,) = fleet.snapshot()
        assert {"id", "state", "image", "runtime", "node", "lease", "restarts", "last_error"} <= set(row)
        assert (row["state"], row["runtime"], row["last_error"]) == ("LEASED", "process", None)
        assert (row["lease"]["owner"], row["lease"]["token"]) == ("me", sandbox.token)


async def test_a_fleet_of_none_is_refused() -> None:
    with pytest.raises(SpecInvalid, match="at least one"):
        Fleet(SandboxSpec(), 0, ProcessRuntime())
