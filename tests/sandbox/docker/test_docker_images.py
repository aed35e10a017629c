"""`rock image build` and `list`, and what `rock gc` calls garbage."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import docker
import pytest
from containers import BASE, Opened

from rocknroll.sandbox.errors import ImageNotFound
from rocknroll.sandbox.owner import identity
from rocknroll.sandbox.runtimes.docker import DockerRuntime
from rocknroll.sandbox.runtimes.docker_garbage import Garbage, garbage, remove
from rocknroll.sandbox.runtimes.docker_image import build_image, list_images
from rocknroll.sandbox.spec import SandboxSpec

MakeSpec = Callable[..., SandboxSpec]
OpenBox = Callable[..., AbstractAsyncContextManager[Opened]]


@pytest.fixture
def tag(client: docker.APIClient, fleet_id: str) -> Iterator[str]:
    yield f"rocknroll-test:{fleet_id}"
    try:
        client.remove_image(f"rocknroll-test:{fleet_id}", force=True)
    except docker.errors.ImageNotFound:
        return


@pytest.mark.asyncio
async def test_an_image_is_built_without_a_network_and_listed_and_runs(
    client: docker.APIClient, tag: str, open_box: OpenBox, spec: MakeSpec
) -> None:
    lines: list[str] = []
    made = build_image(client, tag, BASE, lines.append)
    assert any(line.startswith("Step 1") for line in lines)
    (listed,) = (image for image in list_images(client) if tag in image.tags)
    assert (listed.id, listed.made_by) == (made, "build")
    assert listed.size_bytes > 1 << 20
    async with open_box(spec(image=tag)) as box:
        assert (await box.sh("git --version && id -un"))[1].endswith("sandbox")


def test_a_base_that_is_not_to_be_had_is_named(client: docker.APIClient, tag: str) -> None:
    with pytest.raises(ImageNotFound, match=r"rocknroll-no-such:base.*--base IMAGE"):
        build_image(client, tag, "rocknroll-no-such:base")


def mine(client: docker.APIClient, fleet_id: str) -> list[Garbage]:
    return [each for each in garbage(client) if each.fleet == fleet_id]


def dead_owner() -> str:
    child = subprocess.Popen(["sleep", "1000"])
    owner = identity(child.pid)
    child.kill()
    child.wait()
    return owner


@pytest.mark.asyncio
async def test_what_a_living_fleet_has_is_no_garbage(
    client: docker.APIClient, fleet_id: str, open_box: OpenBox, spec: MakeSpec
) -> None:
    async with open_box(spec()):
        assert mine(client, fleet_id) == []


@pytest.mark.asyncio
async def test_what_a_dead_fleet_left_is_listed_and_removed_only_when_told(
    client: docker.APIClient, fleet_id: str, open_box: OpenBox, spec: MakeSpec, left: Callable[[str], list[str]]
) -> None:
    async with open_box(spec()) as box, open_box(spec(), "box-1.1") as other:
        owner = dead_owner()
        box.instance.folder.claim(owner)
        (found,) = mine(client, fleet_id)
        assert (found.container, found.instance, found.owner) == (box.instance.name, "box-0.1", owner)
        assert await box.instance.autopsy() == "its container still runs"
        remove(client, [found])
        assert await box.instance.autopsy() == "its container is gone"
        assert not box.instance.folder.root.exists()
        assert await other.instance.autopsy() == "its container still runs"


@pytest.mark.asyncio
async def test_what_was_adopted_since_it_was_listed_stays(
    client: docker.APIClient, runtime: DockerRuntime, fleet_id: str, host_folder: Path, spec: MakeSpec
) -> None:
    first = await runtime.start(spec(), "box-0.1", 0)
    first.folder.claim(dead_owner())
    listed = mine(client, fleet_id)
    assert len(listed) == 1
    later = DockerRuntime(fleet_id, host_folder)
    assert await later.adopt(spec(), first.record) is not None
    assert first.folder.owner() == identity(os.getpid())
    remove(client, listed)
    assert await first.autopsy() == "its container still runs"
    await later.close()
