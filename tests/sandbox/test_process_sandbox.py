"""Real sandboxes of the process runtime: isolation, commands, files, fencing."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import pytest_asyncio

from rocknroll.sandbox.channel import Channel
from rocknroll.sandbox.errors import (
    ExecFailed,
    ExecTimeout,
    FileFailed,
    LeaseLost,
    ProtocolError,
    SandboxLost,
    SocketPathTooLong,
    StaleToken,
)
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.sandbox.spec import Resources, SandboxSpec

pytestmark = pytest.mark.asyncio
MakeFleet = Callable[..., Fleet]


@pytest_asyncio.fixture
async def namespaces() -> None:
    runtime = ProcessRuntime()
    level = (await runtime.isolation()).level
    await runtime.close()
    if level != "namespaces":
        pytest.skip(f"the kernel grants {level} only")


@pytest.mark.parametrize("level", ["namespaces", "plain"])
async def test_a_command_runs_and_says_how_it_ended(make_fleet: MakeFleet, level: str) -> None:
    async with make_fleet(level=level) as fleet, await fleet.lease("me") as sandbox:
        done = await sandbox.exec("echo out; echo err >&2; cat; exit 3", stdin=b"typed")
        assert (done.exit_code, done.stdout, done.stderr) == (3, b"out\ntyped", b"err\n")
        with pytest.raises(ExecFailed, match="exit code 3"):
            done.check()
        assert (await sandbox.exec(["kill", "-9", "0"])).exit_code != 0
        with pytest.raises(ExecFailed, match="cannot run"):
            await sandbox.exec(["/no/such/program"])


@pytest.mark.parametrize("level", ["namespaces", "plain"])
async def test_a_deadline_kills_the_whole_tree_and_keeps_what_was_printed(make_fleet: MakeFleet, level: str) -> None:
    async with make_fleet(level=level) as fleet, await fleet.lease("me") as sandbox:
        command = "echo started; (setsid sh -c 'echo $$ > daemon; exec sleep 1000' &) ; sleep 0.2; sleep 1000"
        done = await sandbox.exec(command, timeout_s=1.0)
        assert done.timed_out
        assert done.stdout == b"started\n"
        with pytest.raises(ExecTimeout):
            done.check()
        check = "for i in $(seq 200); do kill -0 $(cat daemon) 2>/dev/null || exit 0; sleep 0.02; done; exit 1"
        assert (await sandbox.exec(check)).exit_code == 0


async def test_the_agent_answers_while_a_command_runs(make_fleet: MakeFleet) -> None:
    async with make_fleet() as fleet, await fleet.lease("me") as sandbox:
        slow = asyncio.create_task(sandbox.exec("until [ -e go ]; do sleep 0.01; done"))
        await sandbox.request("fence", {}, timeout_s=5.0)
        assert (await sandbox.exec("echo quick")).stdout == b"quick\n"
        assert not slow.done()
        await sandbox.write("go", b"")
        assert (await slow).exit_code == 0


async def test_long_output_keeps_head_and_tail_and_says_what_was_cut(make_fleet: MakeFleet) -> None:
    async with make_fleet() as fleet, await fleet.lease("me") as sandbox:
        done = await sandbox.exec("seq 1 200000", output_bytes=1000)
        assert done.stdout.startswith(b"1\n2\n")
        assert done.stdout.endswith(b"199999\n200000\n")
        assert len(done.stdout) == 1000
        assert done.stdout_cut_bytes == sum(len(str(n)) + 1 for n in range(1, 200001)) - 1000


async def test_a_background_child_does_not_hold_the_answer(make_fleet: MakeFleet) -> None:
    async with make_fleet() as fleet, await fleet.lease("me") as sandbox:
        done = await sandbox.exec("sleep 1000 & echo ready", timeout_s=20.0)
        assert (done.stdout, done.timed_out) == (b"ready\n", False)


async def test_files_go_in_and_out_unchanged(make_fleet: MakeFleet) -> None:
    data = os.urandom(1 << 20) * 17
    async with make_fleet() as fleet, await fleet.lease("me") as sandbox:
        await sandbox.write("deep/er/file", data, mode=0o600)
        assert await sandbox.read("deep/er/file") == data
        found = await sandbox.stat("deep/er/file")
        assert (found.kind, found.size_bytes, found.mode) == ("file", len(data), 0o600)
        await sandbox.write("deep/er/file", b"short")
        assert await sandbox.read("deep/er/file") == b"short"
        for path in ("nowhere", "deep"):
            with pytest.raises(FileFailed):
                await sandbox.read(path)
        await sandbox.exec("mkfifo pipe")
        with pytest.raises(FileFailed, match="regular"):
            await sandbox.read("pipe")


@pytest.mark.usefixtures("namespaces")
async def test_a_sandbox_sees_no_processes_no_network_and_no_files_of_the_host(
    make_fleet: MakeFleet, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("mine")
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "data").write_text("yours")
    async with make_fleet(size=2, readable=(shared,)) as fleet, await fleet.lease("me") as sandbox:
        assert (await sandbox.exec(["cat", str(secret)])).exit_code != 0
        assert (await sandbox.exec(["cat", str(shared / "data")])).stdout == b"yours"
        assert (await sandbox.exec(f"echo x > {shared}/data")).exit_code != 0
        assert (await sandbox.exec("echo x > /usr/planted || echo x > /planted")).exit_code != 0
        assert (await sandbox.exec("ls /proc | grep -c '^[0-9]'")).stdout.split()[0] in (b"3", b"4", b"5")
        assert (await sandbox.exec("tail -n +3 /proc/net/dev | cut -d: -f1")).stdout.split() == [b"lo"]
        assert (await sandbox.exec("grep CapEff /proc/self/status")).stdout.split()[1] == b"0" * 16
        assert (await sandbox.exec("mount -t tmpfs none /tmp || unshare -Ur true")).exit_code != 0
        assert (await sandbox.exec("find / -name agent.sock 2>/dev/null")).stdout == b""


@pytest.mark.usefixtures("namespaces")
async def test_nothing_inside_can_kill_the_agent(make_fleet: MakeFleet) -> None:
    async with make_fleet() as fleet, await fleet.lease("me") as sandbox:
        await sandbox.exec("kill -9 1; kill -9 -1; true", timeout_s=10.0)
        assert (await sandbox.exec("echo alive")).stdout == b"alive\n"
        assert fleet.metrics()["started"] == 1


async def test_no_variables_of_the_owner_leak_into_a_sandbox(
    make_fleet: MakeFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "hunter2")
    async with make_fleet(variables={"GIVEN": "yes"}) as fleet, await fleet.lease("me") as sandbox:
        seen = (await sandbox.exec("env; cat /proc/*/environ 2>/dev/null")).stdout
        assert b"GIVEN=yes" in seen
        assert b"hunter2" not in seen


async def test_limits_hold(make_fleet: MakeFleet) -> None:
    resources = Resources(file_bytes=1 << 20, open_files=64)
    async with make_fleet(resources=resources) as fleet, await fleet.lease("me") as sandbox:
        await sandbox.exec("head -c 5000000 /dev/zero > big")
        assert (await sandbox.stat("big")).size_bytes <= 1 << 20
        assert (await sandbox.exec("ulimit -n")).stdout == b"64\n"


async def test_a_paused_holder_cannot_write_once_someone_else_holds_the_sandbox(make_fleet: MakeFleet) -> None:
    async with make_fleet(reuse="reset") as fleet:
        first = await fleet.lease("first")
        await first.release()
        second = await fleet.lease("second")
        assert second.id == first.id
        assert second.token > first.token
        with pytest.raises(LeaseLost):
            await first.write("file", b"stale")
        first._over = ""  # As if the first holder had been stopped before it could learn of the release.
        with pytest.raises(StaleToken):
            await first.write("file", b"stale")
        with pytest.raises(FileFailed):
            await second.read("file")


async def test_a_new_token_ends_what_an_old_one_left_running(make_fleet: MakeFleet) -> None:
    async with make_fleet(reuse="reset") as fleet:
        first = await fleet.lease("first")
        running = asyncio.create_task(first.exec("sleep 1000", timeout_s=100.0))
        await first.request("fence", {})
        await first.release()
        await fleet.lease("second")
        assert (await running).exit_code == -9


async def test_an_expired_lease_is_reclaimed_and_its_holder_told(make_fleet: MakeFleet) -> None:
    async with make_fleet(reuse="reset") as fleet:
        sleepy = await fleet.lease("sleepy", ttl_s=0.05, heartbeats=False)
        pid = fleet.snapshot()[0]["pid"]
        awake = await fleet.lease("awake")
        assert fleet.snapshot()[0]["pid"] != pid
        with pytest.raises(LeaseLost, match="expired"):
            await sleepy.exec("true")
        await awake.exec("true")
        assert "lease_expired" in [event.kind for event in fleet.events()]
        await sleepy.release()
        assert not awake.lost


async def test_heartbeats_keep_a_lease_beyond_its_time_to_live(make_fleet: MakeFleet) -> None:
    async with make_fleet() as fleet, await fleet.lease("me", ttl_s=1.0) as sandbox:
        assert (await sandbox.exec("sleep 2.2; echo done")).stdout == b"done\n"
        assert not sandbox.lost


async def test_a_stranger_and_a_broken_frame_are_turned_away(make_fleet: MakeFleet, folder: Path) -> None:
    async with make_fleet() as fleet, await fleet.lease("me") as sandbox:
        (path,) = folder.glob("*/*/agent.sock")
        with pytest.raises(ProtocolError, match="secret"):
            await Channel.connect(path, "guess", timeout_s=5.0)
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"\x7f\xff\xff\xff\x00\x00\x00\x00")
        assert b"too large" in await reader.read()
        writer.close()
        assert (await sandbox.exec("echo unmoved")).stdout == b"unmoved\n"


async def test_a_socket_path_that_is_too_long_is_named(folder: Path) -> None:
    deep = folder / ("x" * 100)
    deep.mkdir()
    runtime = ProcessRuntime(folder=deep)
    with pytest.raises(SocketPathTooLong, match="107"):
        await runtime.start(SandboxSpec(), "box", floor=0)
    await runtime.close()


async def test_a_command_that_fails_keeps_the_sandbox_from_being_ready(make_fleet: MakeFleet) -> None:
    async with make_fleet(command=("sh", "-c", "echo made > ready")) as fleet, await fleet.lease("me") as sandbox:
        assert await sandbox.read("ready") == b"made\n"


async def test_requests_under_way_fail_when_the_sandbox_dies(make_fleet: MakeFleet) -> None:
    async with make_fleet() as fleet:
        sandbox = await fleet.lease("me")
        running = asyncio.create_task(sandbox.exec("sleep 1000", timeout_s=100.0))
        await sandbox.request("fence", {})
        os.kill(fleet.snapshot()[0]["pid"], 9)
        with pytest.raises(SandboxLost, match="box-0 was lost: "):
            await running


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
async def test_bubblewrap_isolates_as_own_namespaces_do(make_fleet: MakeFleet) -> None:
    async with make_fleet(level="bubblewrap") as fleet, await fleet.lease("me") as sandbox:
        assert (await sandbox.exec("grep CapEff /proc/self/status")).stdout.split()[1] == b"0" * 16
        assert (await sandbox.exec("tail -n +3 /proc/net/dev | cut -d: -f1")).stdout.split() == [b"lo"]
        assert (await sandbox.exec("echo x > /usr/planted")).exit_code != 0
        await sandbox.exec("kill -9 -1; true", timeout_s=10.0)
        assert (await sandbox.exec("echo alive")).stdout == b"alive\n"
