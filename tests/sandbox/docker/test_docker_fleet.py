"""Fleets of containers: many at once, and a daemon that goes away under them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import docker
import pytest
from containers import START_TIMEOUT_S
from private_daemon import PrivateDaemon

from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.lifecycle import State
from rocknroll.sandbox.runtimes.docker import DockerRuntime
from rocknroll.sandbox.spec import RestartPolicy, SandboxSpec

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]
MakeSpec = Callable[..., SandboxSpec]
Eventually = Callable[[Callable[[], bool]], Awaitable[None]]
MANY = 40
OVERHEAD_LIMIT_BYTES = 15 << 20


def memory_bytes(pid: int) -> int:
    """What the kernel counts against the container of this process."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            return int(Path(f"/sys/fs/cgroup/memory{path}/memory.usage_in_bytes").read_text())
        if controllers == "":
            current = Path(f"/sys/fs/cgroup{path}/memory.current")
            if current.exists():
                return int(current.read_text())
    raise AssertionError(f"no memory controller counts for {pid}")


async def test_forty_containers_are_healthy_at_once_and_small(runtime: DockerRuntime, spec: MakeSpec) -> None:
    async with Fleet(spec(), MANY, runtime, owns_runtime=False) as fleet:
        held = await asyncio.gather(*(fleet.lease(str(number), timeout_s=280.0) for number in range(MANY)))
        done = await asyncio.gather(*(sandbox.exec(["true"]) for sandbox in held))
        assert [each.exit_code for each in done] == [0] * MANY
        shown = fleet.snapshot()
        assert {each["state"] for each in shown} == {State.LEASED.value}
        assert max(memory_bytes(each["pid"]) for each in shown) <= OVERHEAD_LIMIT_BYTES
        assert len({each["pid"] for each in shown}) == MANY


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["restarted", "killed"])
async def test_a_fleet_goes_on_after_its_daemon_was_away(
    own_daemon: PrivateDaemon,
    fleet_id: str,
    host_folder: Path,
    spec: MakeSpec,
    eventually: Eventually,
    left: Callable[[str], list[str]],
    number: int,
) -> None:
    runtime = DockerRuntime(fleet_id, host_folder, own_daemon.url)
    quick = RestartPolicy(backoff_s=0.1, backoff_limit_s=1.0, limit=1000)
    async with Fleet(spec(restart=quick), 2, runtime) as fleet:
        before = await fleet.lease("me", timeout_s=START_TIMEOUT_S)
        await asyncio.to_thread(own_daemon.end, number)
        if number == signal.SIGKILL:
            assert (await before.exec("echo no daemon is needed")).stdout == b"no daemon is needed\n"
        await asyncio.to_thread(own_daemon.start)
        # A daemon without live restore ends the containers that it finds; the holder is told.
        await eventually(lambda: bool(before.lost))
        after = await fleet.lease("me", timeout_s=START_TIMEOUT_S)
        assert (await after.exec("echo again")).stdout == b"again\n"
        await after.release()
    own = docker.APIClient(own_daemon.url)
    assert own.containers(all=True) == []
    own.close()
    assert left(fleet_id) == []
