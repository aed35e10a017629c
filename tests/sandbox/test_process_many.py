"""Many process sandboxes at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.runtimes import cgroup
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.sandbox.spec import HealthPolicy, SandboxSpec

SIZE = 200
LIMIT_BYTES = 15 << 20


def private_bytes(pid: int) -> int:
    """Memory that goes away with a process."""
    lines = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return 1024 * sum(int(line[1]) for line in lines if line[0].startswith("Private_"))


@pytest.mark.slow
@pytest.mark.asyncio
async def test_two_hundred_sandboxes_are_alive_and_healthy_and_small(
    folder: Path, eventually: Callable[[Callable[[], bool]], Awaitable[None]]
) -> None:
    runtime = ProcessRuntime(folder=folder)
    places = dict((await runtime.grants()).places)
    if "memory" not in places:
        pytest.skip("without a control group for memory, what a sandbox uses cannot be told")
    async with Fleet(SandboxSpec(health=HealthPolicy(interval_s=2.0)), SIZE, runtime) as fleet:
        await eventually(lambda: fleet.metrics()["state_READY"] == SIZE)
        sandboxes = await asyncio.gather(*(fleet.lease(f"owner {number}") for number in range(SIZE)))
        for _ in range(3):
            done = await asyncio.gather(*(sandbox.exec("echo well") for sandbox in sandboxes))
            assert {(result.stdout, result.exit_code) for result in done} == {(b"well\n", 0)}
        (server,) = folder.iterdir()
        groups = cgroup.remains(places, server.name)
        assert len(groups) == SIZE
        inside = [cgroup.memory_bytes(group) for group in groups]
        outside = [private_bytes(row["pid"]) for row in fleet.snapshot()]
        assert max(inside) + max(outside) <= LIMIT_BYTES
        assert fleet.metrics()["started"] == SIZE
        assert fleet.metrics()["state_LEASED"] == SIZE
