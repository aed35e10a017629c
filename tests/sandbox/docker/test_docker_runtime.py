"""Containers from start to end: commands, death and its reasons, adoption, what is removed and what is not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import docker
import gymnasium
import pytest
from containers import BASE, SMALL, Opened
from docker.errors import NotFound
from playthings import HERE

from rocknroll.envs.remote import RemoteEnv
from rocknroll.sandbox.errors import SandboxLost, SpecInvalid, StartTimeout
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.runtimes.docker import DockerRuntime
from rocknroll.sandbox.spec import EnvSpec, Resources, SandboxSpec

pytestmark = pytest.mark.asyncio
MakeSpec = Callable[..., SandboxSpec]
OpenBox = Callable[..., AbstractAsyncContextManager[Opened]]
Eventually = Callable[[Callable[[], bool]], Awaitable[None]]


async def test_a_command_runs_as_the_user_in_the_working_directory(open_box: OpenBox, spec: MakeSpec) -> None:
    async with open_box(spec(user="4321:1234", workdir="/here", variables={"GREETING": "hello"})) as box:
        assert await box.sh("id -u; id -g; id -G; pwd; echo $GREETING $HOME; echo x > file; cat file") == (
            0,
            "4321\n1234\n1234\n/here\nhello /here\nx",
        )


async def test_the_isolation_names_what_is_separated(runtime: DockerRuntime) -> None:
    isolation = await runtime.isolation()
    assert isolation.level == "container"
    assert {"network", "memory"} <= set(isolation.separated)
    assert "kernel" in isolation.shared


async def test_orphans_are_reaped(open_box: OpenBox, spec: MakeSpec) -> None:
    async with open_box(spec()) as box:
        await box.sh("for i in $(seq 30); do (setsid sh -c 'exec true' &); done")
        none_left = (
            "for i in $(seq 300); do grep -ls '^State:.Z' /proc/[0-9]*/status || exit 0; sleep 0.02; done; exit 1"
        )
        code, _ = await box.sh(none_left)
        assert code == 0


async def test_a_killed_container_is_noticed_at_once_and_says_why(
    open_box: OpenBox, spec: MakeSpec, eventually: Eventually
) -> None:
    async with open_box(spec()) as box:
        heard: list[str] = []
        box.instance.on_exit(lambda why: heard.append(str(why)))
        os.kill(box.instance.pid, signal.SIGKILL)
        await eventually(lambda: bool(heard))
        assert heard == ["its container ended"]
        assert await box.instance.autopsy() == "its container was killed by signal 9"


async def test_an_autopsy_tells_out_of_memory(open_box: OpenBox, spec: MakeSpec, eventually: Eventually) -> None:
    tight = Resources(memory_bytes=40 << 20, scratch_bytes=1 << 20, work_bytes=1 << 20)
    async with open_box(spec(resources=tight)) as box:
        heard: list[str] = []
        box.instance.on_exit(lambda why: heard.append(str(why)))
        # What commands are given on standard input is the agent's own memory.
        stuck = [asyncio.create_task(box.sh("sleep 1000", stdin=bytes(16_000_000))) for _ in range(4)]
        await eventually(lambda: bool(heard))
        assert "out of memory" in await box.instance.autopsy()
        await asyncio.gather(*stuck, return_exceptions=True)


async def test_what_the_agent_printed_last_is_in_the_autopsy(open_box: OpenBox, spec: MakeSpec) -> None:
    async with open_box(spec()) as box:
        (box.instance.folder.run / "log").write_text("Traceback: oh no\n")
        assert (await box.instance.autopsy()).endswith("last output:\nTraceback: oh no")


async def test_killing_twice_and_killing_what_is_gone_is_fine(
    client: docker.APIClient, open_box: OpenBox, spec: MakeSpec
) -> None:
    async with open_box(spec()) as box:
        client.remove_container(box.instance.name, force=True)
        await asyncio.gather(box.instance.kill(), box.instance.kill())
        await box.instance.kill()
        assert not box.instance.folder.root.exists()
        assert await box.instance.autopsy() == "its container is gone"


async def test_no_secret_is_in_what_docker_shows(client: docker.APIClient, open_box: OpenBox, spec: MakeSpec) -> None:
    async with open_box(spec(variables={"API_KEY": "hidden"})) as box:
        shown = json.dumps(client.inspect_container(box.instance.name))
        assert box.instance.secret not in shown
        assert "hidden" not in shown
        assert not (box.instance.folder.run / "config.json").exists()


async def test_a_cancelled_start_leaves_nothing(
    runtime: DockerRuntime, spec: MakeSpec, left: Callable[[str], list[str]], fleet_id: str, eventually: Eventually
) -> None:
    start = asyncio.create_task(runtime.start(spec(), "box-0.1", 0))
    await eventually(lambda: any("rock-t" in name and name.startswith("/rock-") for name in left(fleet_id)))
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert [name for name in left(fleet_id) if name.startswith(f"/rock-{fleet_id}")] == []


async def test_a_start_that_takes_too_long_leaves_nothing(
    runtime: DockerRuntime, spec: MakeSpec, left: Callable[[str], list[str]], fleet_id: str
) -> None:
    with pytest.raises(StartTimeout, match=r"0\.01 s"):
        await runtime.start(spec(start_timeout_s=0.01), "box-0.1", 0)
    assert [name for name in left(fleet_id) if name.startswith(f"/rock-{fleet_id}")] == []


async def test_an_abandoned_container_ends_by_itself(
    client: docker.APIClient, fleet_id: str, host_folder: Path, spec: MakeSpec, eventually: Eventually
) -> None:
    runtime = DockerRuntime(fleet_id, host_folder, orphan_ttl_s=0.3)
    try:
        instance = await runtime.start(spec(), "box-0.1", 0)
        ended: list[str] = []
        instance.on_exit(lambda why: ended.append(str(why)))
        await eventually(lambda: bool(ended))
    finally:
        await runtime.close()


async def test_a_later_manager_adopts_what_still_runs(
    runtime: DockerRuntime, fleet_id: str, host_folder: Path, spec: MakeSpec
) -> None:
    wanted = spec()
    first = await runtime.start(wanted, "box-0.1", 0)
    later = DockerRuntime(fleet_id, host_folder)
    record = json.loads(json.dumps(dict(first.record)))
    adopted = await later.adopt(wanted, record)
    assert adopted is not None
    assert (adopted.pid, adopted.secret, adopted.socket_path) == (first.pid, first.secret, first.socket_path)
    assert await later.sweep(["box-0.1"]) == []
    assert await adopted.autopsy() == "its container still runs"
    await later.close()
    assert await first.autopsy() == "its container is gone"


async def test_what_runs_by_another_specification_is_not_adopted_but_removed(
    runtime: DockerRuntime, spec: MakeSpec
) -> None:
    first = await runtime.start(spec(), "box-0.1", 0)
    assert await runtime.adopt(spec(variables={"A": "b"}), first.record) is None
    assert await first.autopsy() == "its container is gone"


async def test_what_has_ended_is_not_adopted_but_removed(runtime: DockerRuntime, spec: MakeSpec) -> None:
    first = await runtime.start(spec(), "box-0.1", 0)
    os.kill(first.pid, signal.SIGKILL)
    assert "signal 9" in await first.autopsy() or await first.autopsy()
    await asyncio.to_thread(runtime._daemon._client.wait, first.name)  # type: ignore[union-attr]
    assert await runtime.adopt(spec(), first.record) is None
    assert not first.folder.root.exists()


async def test_a_record_of_another_fleet_is_left_alone(
    runtime: DockerRuntime, host_folder: Path, spec: MakeSpec, fleet_id: str
) -> None:
    first = await runtime.start(spec(), "box-0.1", 0)
    stranger = DockerRuntime(fleet_id + "x", host_folder)
    assert await stranger.adopt(spec(), first.record) is None
    await stranger.close()
    assert await first.autopsy() == "its container still runs"


async def test_a_sweep_removes_what_nobody_knows_and_nothing_of_others(
    client: docker.APIClient, runtime: DockerRuntime, fleet_id: str, host_folder: Path, spec: MakeSpec
) -> None:
    known = await runtime.start(spec(), "box-0.1", 0)
    unknown = await runtime.start(spec(), "box-1.1", 0)
    # Somebody's own container, by its name; it only carries our label.
    config = {"Image": BASE, "Entrypoint": ["sleep", "1000"], "Labels": {"rocknroll.fleet": fleet_id}}
    config["Labels"] |= {"rocknroll.instance": "x", "rocknroll.folder": "/x"}
    client.create_container_from_config(config, f"mine-{fleet_id}")
    later = DockerRuntime(fleet_id, host_folder)
    try:
        assert await later.sweep(["box-0.1"]) == ["box-1.1"]
        assert await unknown.autopsy() == "its container is gone"
        assert not unknown.folder.root.exists()
        assert await known.autopsy() == "its container still runs"
        assert client.inspect_container(f"mine-{fleet_id}")
    finally:
        client.remove_container(f"mine-{fleet_id}", force=True)
        await later.close()


async def test_what_is_readable_is_visible_and_nothing_else(open_box: OpenBox, spec: MakeSpec, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "data").write_text("facts")
    async with open_box(spec(readable=(tmp_path,))) as box:
        assert await box.sh(f"cat {tmp_path}/data") == (0, "facts")
        code, text = await box.sh(f"echo x > {tmp_path}/data")
        assert code != 0 and "Read-only" in text


@pytest.mark.parametrize("writable_root", [False, True])
async def test_a_template_is_where_work_starts_and_is_never_changed(
    client: docker.APIClient, open_box: OpenBox, spec: MakeSpec, tmp_path: Path, writable_root: bool
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "run.sh").write_text("echo from the template")
    (tmp_path / "src" / "run.sh").chmod(0o750)
    (tmp_path / "link").symlink_to("/etc/passwd")

    def layers() -> set[str]:
        return {image["Id"] for image in client.images(filters={"label": "rocknroll.image=template"})}

    before = layers()
    wanted = spec(template=tmp_path, writable_root=writable_root)
    for name in ("box-0.1", "box-1.1"):
        async with open_box(wanted, name) as box:
            assert await box.sh("./src/run.sh; readlink link; stat -c %u:%g:%a src/run.sh; ls -A") == (
                0,
                "from the template\n/etc/passwd\n1000:1000:750\nlink\nsrc",
            )
            assert await box.sh("echo changed > src/run.sh; rm link; mkdir new") == (0, "")
    assert (tmp_path / "src" / "run.sh").read_text() == "echo from the template"
    made = layers() - before
    assert len(made) == (1 if writable_root else 0)
    for image in made:
        client.remove_image(image, force=True)


async def test_a_template_that_does_not_fit_is_refused(runtime: DockerRuntime, spec: MakeSpec, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(SMALL.work_bytes + 1))
    with pytest.raises(SpecInvalid, match="raise resources"):
        await runtime.start(spec(template=tmp_path), "box-0.1", 0)


async def test_a_writable_root_can_be_snapshot_into_an_image(
    client: docker.APIClient, runtime: DockerRuntime, open_box: OpenBox, spec: MakeSpec, fleet_id: str
) -> None:
    tag = f"rocknroll-test:{fleet_id}"
    try:
        async with open_box(spec(writable_root=True, user="root")) as box:
            assert (await box.sh("echo warm > /opt/state; cp /usr/bin/id /opt/id; chmod 4755 /opt/id"))[0] == 0
            made = await runtime.commit(box.instance, tag)
        image = client.inspect_image(tag)
        assert image["Id"] == made
        assert not image["Config"]["Labels"]["rocknroll.fleet"]
        assert image["Config"]["Entrypoint"] in (None, [])
        async with open_box(spec(image=tag)) as box:
            assert await box.sh("cat /opt/state") == (0, "warm")
            # Set-user-id programs give nothing.
            assert await box.sh("/opt/id -u") == (0, "1000")
        inside = client.create_container_from_config({"Image": tag, "Entrypoint": ["true"]})["Id"]
        with pytest.raises(NotFound):
            client.get_archive(inside, "/rock/run")
        client.remove_container(inside)
    finally:
        client.remove_image(tag, force=True)


async def test_only_a_writable_root_that_is_there_can_be_snapshot(
    runtime: DockerRuntime, open_box: OpenBox, spec: MakeSpec
) -> None:
    async with open_box(spec()) as box:
        with pytest.raises(SpecInvalid, match="writable_root"):
            await runtime.commit(box.instance, "rocknroll-test:never")
    with pytest.raises(SandboxLost):
        await runtime.commit(box.instance, "rocknroll-test:never")


async def test_an_environment_is_made_inside(runtime: DockerRuntime, spec: MakeSpec) -> None:
    """With this machine's Python packages made readable: the base image has none of them."""
    packages = Path(gymnasium.__file__).parents[1]
    env = EnvSpec(entry_point="playthings:Plaything", python_path=(HERE, packages))
    roomy = Resources(memory_bytes=512 << 20, scratch_bytes=8 << 20, work_bytes=16 << 20)
    fleet = Fleet(spec(env=env, resources=roomy), 1, runtime, owns_runtime=False)
    async with fleet, await fleet.lease("me", timeout_s=280.0) as sandbox:
        remote = RemoteEnv(sandbox, step_timeout_s=60.0)
        assert (await remote.reset(seed=1))[0] == "hello"
        assert (await remote.step("write"))[0] == "write 1"
        assert await sandbox.read("note") == b"1"


async def test_a_network_is_there_only_when_asked_for(open_box: OpenBox, spec: MakeSpec) -> None:
    async with open_box(spec(network="bridge")) as box:
        assert await box.sh("ls /sys/class/net") == (0, "eth0\nlo")
