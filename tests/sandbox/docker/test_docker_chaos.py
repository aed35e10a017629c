"""Three minutes of faults on 20 containers, the daemon's restart among them; see `test_chaos.py`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import docker
import pytest
from containers import BASE
from endurance import DURATION_S, SPEC, Manager, check, endure
from private_daemon import PrivateDaemon

pytestmark = [pytest.mark.slow, pytest.mark.asyncio, pytest.mark.timeout(900)]
DAEMON_EVERY_S = 70.0


async def test_containers_endure_and_so_does_the_daemons_restart(folder: Path, own_daemon: PrivateDaemon) -> None:
    manager = Manager(folder, {**SPEC, "runtime": "docker", "image": BASE}, {"DOCKER_HOST": own_daemon.url})
    await manager.up("--wait")

    async def restart_daemon() -> None:
        await asyncio.to_thread(own_daemon.end)
        await asyncio.to_thread(own_daemon.start)

    account, faults = await endure(manager, {restart_daemon: min(DAEMON_EVERY_S, DURATION_S / 2.5)})
    check(account, faults, manager, {"kill", "freeze", "crash", "restart_daemon"})
    client = docker.APIClient(own_daemon.url)
    assert client.containers(all=True) == []
    client.close()
