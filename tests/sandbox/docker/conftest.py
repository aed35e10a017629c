"""Real containers for tests. Where there is no Docker they are skipped, or fail when that was forbidden."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
import pytest_asyncio
from containers import BASE, SMALL, START_TIMEOUT_S, missing, opened
from docker.errors import NotFound
from private_daemon import PrivateDaemon, private_daemon

from rocknroll.sandbox.errors import RuntimeUnavailable
from rocknroll.sandbox.runtimes.docker import DockerRuntime
from rocknroll.sandbox.runtimes.docker_daemon import DEFAULT_URL, connect
from rocknroll.sandbox.runtimes.docker_options import FLEET
from rocknroll.sandbox.spec import SandboxSpec


@pytest.fixture(scope="session")
def client() -> Iterator[docker.APIClient]:
    """The daemon, with the base image there."""
    try:
        client = connect(os.environ.get("DOCKER_HOST") or DEFAULT_URL)
    except RuntimeUnavailable as error:
        missing(str(error))
    try:
        client.inspect_image(BASE)
    except NotFound:
        missing(f"there is no image {BASE}; .ci/docker-base makes it")
    yield client
    client.close()


@pytest.fixture
def fleet_id() -> str:
    return "t" + secrets.token_hex(6)


@pytest.fixture
def host_folder() -> Iterator[Path]:
    """Where the fleet's folder goes; pytest's own have paths too long for sockets."""
    path = Path(tempfile.mkdtemp(prefix="t-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def left(client: docker.APIClient, host_folder: Path) -> Callable[[str], list[str]]:
    """What exists of a fleet: names of containers and of folders."""

    def look(fleet_id: str) -> list[str]:
        found = client.containers(all=True, filters={"label": f"{FLEET}={fleet_id}"})
        return [each["Names"][0] for each in found] + [str(path) for path in host_folder.glob(f"rock-*-{fleet_id}")]

    return look


@pytest_asyncio.fixture
async def runtime(
    client: docker.APIClient, fleet_id: str, host_folder: Path, left: Callable[[str], list[str]]
) -> AsyncIterator[DockerRuntime]:
    """Every test ends with nothing of its fleet left."""
    runtime = DockerRuntime(fleet_id, host_folder)
    yield runtime
    await runtime.close()
    assert left(fleet_id) == []


@pytest.fixture
def spec() -> Callable[..., SandboxSpec]:
    """Specifications on the base image, with small limits."""

    def make(**fields: Any) -> SandboxSpec:
        return SandboxSpec(**{"image": BASE, "resources": SMALL, "start_timeout_s": START_TIMEOUT_S, **fields})

    return make


@pytest.fixture
def open_box(runtime: DockerRuntime) -> Callable[..., Any]:
    """`async with open_box(spec) as box`."""
    return lambda spec, instance_id="box-0.1": opened(runtime, spec, instance_id)


@pytest.fixture(scope="module")
def own_daemon(client: docker.APIClient) -> Iterator[PrivateDaemon]:
    """A daemon that may be restarted, with the base image."""
    if os.getuid() != 0:
        missing("only root can run a daemon of its own")
    folder = Path(tempfile.mkdtemp(prefix="d-"))
    try:
        with private_daemon(folder) as daemon:
            daemon.load(client, BASE)
            yield daemon
    finally:
        shutil.rmtree(folder, ignore_errors=True)
