"""What cannot work says so in one typed error with what to do, and leaves nothing."""

from __future__ import annotations

import asyncio
import io
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import docker
import pytest
import pytest_asyncio
from containers import BASE, Opened

from rocknroll.sandbox.errors import (
    FleetExhausted,
    ImageNotFound,
    RuntimeUnavailable,
    SocketPathTooLong,
    SpecInvalid,
    StartFailed,
)
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.runtimes.docker import DockerRuntime
from rocknroll.sandbox.runtimes.docker_daemon import DEFAULT_URL
from rocknroll.sandbox.spec import Resources, SandboxSpec

pytestmark = pytest.mark.asyncio
MakeSpec = Callable[..., SandboxSpec]
OpenBox = Callable[..., AbstractAsyncContextManager[Opened]]


async def refusal(runtime: DockerRuntime, spec: SandboxSpec, error: type[Exception]) -> str:
    """The text of what `start` raises; nothing is left of it."""
    with pytest.raises(error) as raised:
        await runtime.start(spec, "box-0.1", 0)
    return str(raised.value)


async def test_without_a_daemon_the_text_says_how_to_start_one(host_folder: Path) -> None:
    runtime = DockerRuntime("nobody", host_folder, f"unix://{host_folder}/none.sock")
    text = await refusal(runtime, SandboxSpec(image="i"), RuntimeUnavailable)
    assert "sudo systemctl start docker" in text and f"{host_folder}/none.sock" in text
    with pytest.raises(RuntimeUnavailable):
        await runtime.isolation()


async def test_a_daemon_on_another_machine_is_refused() -> None:
    runtime = DockerRuntime("far", base_url="tcp://192.0.2.1:2375")
    assert "unset DOCKER_HOST" in await refusal(runtime, SandboxSpec(image="i"), RuntimeUnavailable)


UNPRIVILEGED = """
import asyncio, sys
from pathlib import Path
from rocknroll.sandbox.channel import Channel
from rocknroll.sandbox.runtimes.docker import DockerRuntime
from rocknroll.sandbox.spec import SandboxSpec

async def main():
    runtime = DockerRuntime(sys.argv[1], Path(sys.argv[2]))
    try:
        instance = await runtime.start(SandboxSpec(image=sys.argv[3], user=sys.argv[4]), "box-0.1", 0)
        channel = await Channel.connect(instance.socket_path, instance.secret, 60.0)
        argv = ["sh", "-c", "id -u; ls /rock"]
        header, body = await channel.request("exec", {"token": 1, "argv": argv, "timeout_s": 60.0})
        print(body.decode())
    finally:
        await runtime.close()

asyncio.run(main())
"""


def as_user(host_folder: Path, fleet_id: str, groups: str, inside: str) -> subprocess.CompletedProcess[str]:
    """Run a fleet as user 54321, who can read the program but nothing of root's."""
    os.chown(host_folder, 54321, 54321)
    script = host_folder / "script.py"
    script.write_text(UNPRIVILEGED)
    user = ["setpriv", "--reuid=54321", "--regid=54321", f"--groups={groups}"]
    if subprocess.run([*user, sys.executable, "-c", "import rocknroll"], capture_output=True, check=False).returncode:
        pytest.skip("other users cannot read this Python or this checkout")
    argv = [*user, sys.executable, str(script), fleet_id, str(host_folder), BASE, inside]
    return subprocess.run(argv, capture_output=True, text=True, check=False, cwd="/", timeout=120)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
async def test_without_permission_the_text_says_how_to_get_it(
    client: docker.APIClient, host_folder: Path, fleet_id: str
) -> None:
    done = await asyncio.to_thread(as_user, host_folder, fleet_id, "54321", "1000:1000")
    assert "RuntimeUnavailable" in done.stderr
    assert "sudo usermod -aG docker $USER" in done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("inside", ["1000:1000", "54321:54321"])
async def test_a_member_of_the_docker_group_needs_not_be_root(
    client: docker.APIClient, host_folder: Path, fleet_id: str, inside: str, left: Callable[[str], list[str]]
) -> None:
    group = Path(DEFAULT_URL.removeprefix("unix://")).stat().st_gid
    done = await asyncio.to_thread(as_user, host_folder, fleet_id, str(group), inside)
    assert done.returncode == 0, done.stderr
    # Not even a sandbox that has the number of the fleet's own user reaches the agent's folder.
    assert done.stdout.splitlines()[0] == inside.partition(":")[0]
    assert "Permission denied" in done.stdout
    assert left(fleet_id) == []


async def test_a_missing_image_is_named_with_what_makes_it(runtime: DockerRuntime, spec: MakeSpec) -> None:
    text = await refusal(runtime, spec(image="rocknroll-no-such:image"), ImageNotFound)
    assert "rocknroll-no-such:image" in text and "docker pull" in text and "rock image build" in text
    assert "needs one" in await refusal(runtime, spec(image=""), SpecInvalid)


@pytest.fixture
def make_image(client: docker.APIClient) -> Iterator[Callable[[str], str]]:
    """An image by the lines of a Dockerfile."""
    tags: list[str] = []

    def make(dockerfile: str) -> str:
        tags.append(f"rocknroll-test:{secrets.token_hex(6)}")
        for part in client.build(fileobj=io.BytesIO(dockerfile.encode()), tag=tags[-1], rm=True, decode=True):
            assert "error" not in part, part
        return tags[-1]

    yield make
    for tag in tags:
        client.remove_image(tag, force=True)


async def test_an_image_without_python_is_a_permanent_failure(
    runtime: DockerRuntime, spec: MakeSpec, make_image: Callable[[str], str]
) -> None:
    image = make_image("FROM scratch\nLABEL empty=yes\n")
    with pytest.raises(StartFailed, match="no python3") as raised:
        await runtime.start(spec(image=image), "box-0.1", 0)
    assert raised.value.permanent


async def test_an_image_with_an_old_python_says_which(
    runtime: DockerRuntime, spec: MakeSpec, make_image: Callable[[str], str]
) -> None:
    pretend = "import sys, runpy; sys.version_info = (3, 6, 9); sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], {}"
    wrapper = f'#!/bin/sh\\nshift 2; exec /usr/bin/python3 -c "{pretend}, \\\\"__main__\\\\")" "$@"\\n'
    image = make_image(
        f"FROM {BASE}\nRUN printf '{wrapper}' >/usr/local/bin/python3; chmod 755 /usr/local/bin/python3\n"
    )
    with pytest.raises(StartFailed, match=r"python3 is 3\.6\.9, the agent needs 3\.9") as raised:
        await runtime.start(spec(image=image), "box-0.1", 0)
    assert raised.value.permanent


async def test_a_container_that_ends_before_it_is_looked_at_is_accounted_for(
    runtime: DockerRuntime,
    spec: MakeSpec,
    make_image: Callable[[str], str],
    client: docker.APIClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = make_image(
        f"FROM {BASE}\nRUN printf '#!/bin/sh\\nexit 7\\n' >/usr/local/bin/python3; chmod 755 /usr/local/bin/python3\n"
    )
    start = docker.APIClient.start

    def start_and_see_it_end(self: docker.APIClient, name: str) -> None:
        start(self, name)
        client.wait(name)

    monkeypatch.setattr(docker.APIClient, "start", start_and_see_it_end)
    with pytest.raises(StartFailed, match="ended with exit code 7"):
        await runtime.start(spec(image=image), "box-0.1", 0)


async def test_a_fleet_on_a_missing_image_gives_up_with_the_reason(runtime: DockerRuntime, spec: MakeSpec) -> None:
    async with Fleet(spec(image="rocknroll-no-such:image"), 1, runtime, owns_runtime=False) as fleet:
        with pytest.raises(FleetExhausted, match="rocknroll-no-such:image"):
            await fleet.lease("me", timeout_s=60.0)


async def test_what_docker_refuses_is_the_specifications_fault(runtime: DockerRuntime, spec: MakeSpec) -> None:
    tiny = Resources(memory_bytes=192 << 20, scratch_bytes=1 << 20, work_bytes=1 << 20, cpus=100_000)
    assert "CPUs" in await refusal(runtime, spec(resources=tiny), SpecInvalid)


async def test_a_folder_with_too_long_a_path_is_refused(client: docker.APIClient, tmp_path: Path) -> None:
    runtime = DockerRuntime("long", tmp_path / ("x" * 100))
    assert "107" in await refusal(runtime, SandboxSpec(image=BASE), SocketPathTooLong)


async def test_a_folder_of_somebody_else_is_refused(client: docker.APIClient, host_folder: Path) -> None:
    planted = host_folder / f"rock-{os.getuid()}-mine"
    planted.mkdir()
    planted.chmod(0o777)
    runtime = DockerRuntime("mine", host_folder)
    assert "closed to others" in await refusal(runtime, SandboxSpec(image=BASE), RuntimeUnavailable)


async def test_a_fleet_id_that_is_no_file_name_is_refused() -> None:
    with pytest.raises(SpecInvalid, match="fleet id"):
        DockerRuntime("../up")


@pytest.fixture
def full_disk(host_folder: Path) -> Iterator[Path]:
    """A file system without room."""
    if os.getuid() != 0:
        pytest.skip("only root can mount one")
    place = host_folder / "full"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "none", place], check=True)
    (place / "ballast").write_bytes(bytes(48 << 10))
    yield place
    subprocess.run(["umount", place], check=True)


async def test_a_full_disk_is_told_as_such(client: docker.APIClient, full_disk: Path, spec: MakeSpec) -> None:
    runtime = DockerRuntime("full", full_disk)
    text = await refusal(runtime, spec(), StartFailed)
    assert "a disk is full" in text and "docker system df" in text
    await runtime.close()


class Relay:
    """A daemon that can go away: forwards a socket to the real one's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def up(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, str(self.path))

    async def down(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        far_reader, far_writer = await asyncio.open_unix_connection(DEFAULT_URL.removeprefix("unix://"))

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()

        try:
            await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
        finally:
            writer.transport.abort()
            far_writer.transport.abort()
            self._tasks.discard(task)


@pytest_asyncio.fixture
async def relay(host_folder: Path) -> AsyncIterator[Relay]:
    relay = Relay(host_folder / "docker.sock")
    await relay.up()
    yield relay
    await relay.down()


async def test_sandboxes_outlive_the_daemons_absence(
    client: docker.APIClient,
    relay: Relay,
    fleet_id: str,
    host_folder: Path,
    spec: MakeSpec,
    left: Callable[[str], list[str]],
) -> None:
    runtime = DockerRuntime(fleet_id, host_folder, f"unix://{relay.path}")
    async with Fleet(spec(), 1, runtime) as fleet, await fleet.lease("me", timeout_s=120.0) as sandbox:
        await relay.down()
        assert (await sandbox.exec("echo still here")).stdout == b"still here\n"
        with pytest.raises(RuntimeUnavailable, match="no Docker daemon answers"):
            await runtime.start(spec(), "other.1", 0)
        await relay.up()
    assert left(fleet_id) == []


async def test_a_removal_waits_for_a_daemon_that_comes_back(
    client: docker.APIClient,
    relay: Relay,
    fleet_id: str,
    host_folder: Path,
    spec: MakeSpec,
    left: Callable[[str], list[str]],
) -> None:
    runtime = DockerRuntime(fleet_id, host_folder, f"unix://{relay.path}")
    instance = await runtime.start(spec(), "box-0.1", 0)
    await relay.down()
    assert "cannot be asked" in await instance.autopsy()
    removal = asyncio.create_task(instance.kill())
    await asyncio.sleep(0)
    assert not removal.done()
    await relay.up()
    await removal
    await runtime.close()
    assert left(fleet_id) == []
