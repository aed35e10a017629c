"""Limits of process sandboxes as a whole, and what is said of one that ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from rocknroll.sandbox.channel import Channel
from rocknroll.sandbox.errors import RuntimeUnavailable, StartFailed
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.runtimes import cgroup
from rocknroll.sandbox.runtimes.outlet import BURST_BYTES, KEPT_BYTES, PAUSE_S, Outlet
from rocknroll.sandbox.runtimes.process import ProcessInstance, ProcessRuntime
from rocknroll.sandbox.spec import Resources, SandboxSpec

pytestmark = pytest.mark.asyncio
MIB = 1 << 20
SMALL = Resources(memory_bytes=96 * MIB, work_bytes=8 * MIB, scratch_bytes=8 * MIB, processes=24, cpus=0.5)
HOG = "exec python3 -c 'data = bytearray(300 << 20); print(len(data))'"

SEVERAL_HOGS = """
import os, time
for _ in range(5):
    if os.fork() == 0:
        data = bytearray(40 << 20)
        time.sleep(100)
print(os.WTERMSIG(os.wait()[1]))
"""


@pytest_asyncio.fixture(params=["namespaces", "bubblewrap", "plain"])
async def runtime(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[ProcessRuntime]:
    runtime = ProcessRuntime(request.param, folder=folder, limits="groups")
    try:
        await runtime.grants()
    except RuntimeUnavailable as refused:
        await runtime.close()
        pytest.skip(str(refused))
    yield runtime
    await runtime.close()


async def test_memory_is_limited_for_the_whole_sandbox_which_survives(runtime: ProcessRuntime) -> None:
    async with Fleet(SandboxSpec(resources=SMALL), 1, runtime, owns_runtime=False) as fleet:
        sandbox = await fleet.lease("me")
        assert (await sandbox.exec(HOG)).exit_code == -signal.SIGKILL
        done = await sandbox.exec(["python3", "-c", SEVERAL_HOGS], timeout_s=30.0)
        assert done.stdout == b"9\n"
        assert (await sandbox.exec("echo alive")).stdout == b"alive\n"


async def test_processes_are_counted_for_the_whole_sandbox(runtime: ProcessRuntime) -> None:
    async with Fleet(SandboxSpec(resources=SMALL), 1, runtime, owns_runtime=False) as fleet:
        sandbox = await fleet.lease("me")
        count = (
            "import os, time\nn = 0\ntry:\n    while n < 60:\n"
            "        if os.fork() == 0: time.sleep(100)\n        n += 1\nexcept OSError: pass\nprint(n)"
        )
        done = await sandbox.exec(["python3", "-c", count], timeout_s=20.0)
        assert int(done.stdout) < 24
        assert fleet.metrics()["started"] == 1


async def test_cpu_is_shared_out(runtime: ProcessRuntime) -> None:
    async with Fleet(SandboxSpec(resources=SMALL), 1, runtime, owns_runtime=False) as fleet:
        sandbox = await fleet.lease("me")
        spin = "import time\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass\nprint(time.process_time())"
        done = await sandbox.exec(["python3", "-c", spin])
        assert float(done.check().stdout) < 1.6


async def start(runtime: ProcessRuntime, spec: SandboxSpec) -> tuple[ProcessInstance, Channel]:
    instance = await runtime.start(spec, "box-0.1", floor=0)
    return instance, await Channel.connect(instance.socket_path, instance.secret, timeout_s=30.0)


async def test_an_autopsy_tells_a_signal_from_an_exit_and_from_too_much_memory(
    runtime: ProcessRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance, channel = await start(runtime, SandboxSpec(resources=SMALL))
    os.kill(instance.pid, signal.SIGKILL)
    assert await instance.autopsy() == "its process was killed by signal 9"
    channel.close()
    await instance.kill()

    instance, channel = await start(runtime, SandboxSpec(resources=SMALL))
    request = {"argv": ["/bin/sh", "-c", HOG], "timeout_s": 30.0, "token": 0}
    await channel.request("exec", request)
    os.kill(instance.pid, signal.SIGKILL)
    assert "the kernel killed 1 of its processes at the memory limit" in await instance.autopsy()
    channel.close()
    await instance.kill()

    monkeypatch.setattr("rocknroll.sandbox.runtimes.process.AUTOPSY_PATIENCE_S", 0.05)
    instance, channel = await start(runtime, SandboxSpec(resources=SMALL))
    assert await instance.autopsy() == "its process still runs"
    channel.close()


async def test_an_autopsy_shows_what_was_printed_last(runtime: ProcessRuntime) -> None:
    instance, channel = await start(runtime, SandboxSpec())
    request = {
        "module": "no.module",
        "argv": ["/bin/sh", "-c", "echo last words >&2; exec sleep 100"],
        "timeout_s": 0.5,
        "token": 0,
    }
    with pytest.raises(Exception, match="gone"):
        await channel.request("env.make", request)
    os.kill(instance.pid, signal.SIGKILL)
    assert (await instance.autopsy()).endswith("; last output:\nlast words")
    channel.close()


async def test_groups_go_with_their_sandbox(runtime: ProcessRuntime, folder: Path) -> None:
    places = dict((await runtime.grants()).places)
    instance, channel = await start(runtime, SandboxSpec())
    (server,) = folder.iterdir()
    (groups,) = cgroup.remains(places, server.name)
    assert set(groups) == {"memory", "pids", "cpu"}
    assert cgroup.processes(groups)
    channel.close()
    await instance.kill()
    assert cgroup.remains(places, server.name) == []


async def test_groups_that_are_asked_for_and_not_to_be_had_are_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = ProcessRuntime("plain", folder=folder, limits="rlimits")
    assert (await runtime.grants()).places == {}
    assert "limit of memory" not in (await runtime.isolation()).separated
    assert "memory" in (await runtime.isolation()).shared
    await runtime.close()


async def test_what_a_sandbox_prints_without_end_fills_no_disk(tmp_path: Path) -> None:
    outlet = Outlet(str(tmp_path / "log"))
    os.set_blocking(outlet.writer, False)
    written, now_s = 0, 100.0
    for round_number in range(400):
        try:
            written += os.write(outlet.writer, b"%06d" % round_number * 10_000)
        except BlockingIOError:
            now_s += PAUSE_S
        outlet.drain(now_s)
        assert (tmp_path / "log").stat().st_size <= KEPT_BYTES
    outlet.drain(now_s + PAUSE_S)
    os.write(outlet.writer, b"the end")
    outlet.close(now_s)
    os.close(outlet.writer)
    assert written > 4 * KEPT_BYTES
    kept = (tmp_path / "log").read_bytes()
    assert kept.endswith(b"the end")
    assert len(kept) > KEPT_BYTES // 2


async def test_what_is_read_of_a_flood_is_limited_by_time_and_the_writer_waits(tmp_path: Path) -> None:
    outlet = Outlet(str(tmp_path / "log"))
    os.set_blocking(outlet.writer, False)

    def write_all_that_goes(now_s: float) -> int:
        written = 0
        with contextlib.suppress(BlockingIOError):
            while written < 4 * BURST_BYTES:
                written += os.write(outlet.writer, bytes(10_000))
                outlet.drain(now_s)
        return written

    assert BURST_BYTES <= write_all_that_goes(100.0) <= BURST_BYTES + (1 << 17)
    assert outlet.resume_s == 100.0 + PAUSE_S
    outlet.drain(outlet.resume_s)
    assert write_all_that_goes(outlet.resume_s) > BURST_BYTES // 2
    outlet.close(200.0)
    os.close(outlet.writer)


async def test_a_flood_of_output_keeps_nobody_else_waiting(runtime: ProcessRuntime, folder: Path) -> None:
    instance, channel = await start(runtime, SandboxSpec())
    flood = {"module": "no.module", "argv": ["/bin/sh", "-c", "exec yes >&2"], "timeout_s": 60.0, "token": 0}
    flooding = asyncio.create_task(channel.request("env.make", flood))
    (log,) = folder.glob("*/1/log")
    while log.stat().st_size < KEPT_BYTES // 2:
        await asyncio.sleep(0.005)
    for _ in range(3):
        other = await runtime.start(SandboxSpec(), "box-1.1", floor=0)
        await other.kill()
        assert log.stat().st_size <= KEPT_BYTES
    await channel.request("ping", timeout_s=10.0)
    await instance.kill()
    with pytest.raises(Exception, match="closed"):
        await flooding


async def test_a_kernel_that_refuses_a_group_fails_the_start_and_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    runtime = ProcessRuntime("plain", folder=folder)
    grants = await runtime.grants()
    object.__setattr__(grants, "places", {"memory": [1, str(tmp_path / "nowhere")]})
    with pytest.raises(StartFailed, match="nowhere"):
        await runtime.start(SandboxSpec(), "box", floor=0)
    assert [path for path in folder.glob("*/*") if path.name.isdigit()] == []
    await runtime.close()


async def test_no_place_for_files_and_no_interpreter_are_errors_that_say_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RuntimeUnavailable, match=r"need a folder under .*nowhere"):
        await ProcessRuntime(folder=folder / "nowhere").isolation()
    monkeypatch.setattr("sys.executable", str(folder / "python"))
    with pytest.raises(RuntimeUnavailable, match="cannot be started with"):
        await ProcessRuntime(folder=folder).isolation()
    assert list(folder.iterdir()) == []


def tree(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


async def test_version_2_settings_are_written_as_the_kernel_reads_them(tmp_path: Path) -> None:
    places = {name: (2, str(tmp_path)) for name in cgroup.CONTROLLERS}
    resources = {"memory_bytes": 1000, "processes": None, "cpus": 1.5}
    groups = cgroup.create(places, "rock-x.1", resources)
    folder = tmp_path / "rock-x.1"
    assert set(groups.values()) == {str(folder)}
    written = {path.name: path.read_text() for path in folder.iterdir()}
    assert written == {"memory.max": "1000", "pids.max": "max", "cpu.max": "150000 100000"}
    (folder / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert cgroup.out_of_memory(groups) == 2


async def test_own_groups_are_found_in_either_version(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    (first / "memory" / "mine").mkdir(parents=True)
    (second / "mine").mkdir(parents=True)
    proc = tree(
        tmp_path / "proc1",
        {
            "mountinfo": f"31 2 0:1 / {first}/memory rw - cgroup cgroup rw,memory\n",
            "cgroup": "4:memory:/mine\n0::/\n",
        },
    )
    assert cgroup._candidates("memory", proc) == [(1, f"{first}/memory/mine")]
    assert cgroup._candidates("pids", proc) == []
    proc = tree(
        tmp_path / "proc2",
        {"mountinfo": f"31 2 0:1 /box {second} rw - cgroup2 cgroup rw\n", "cgroup": "0::/box/mine\n"},
    )
    assert cgroup._candidates("pids", proc)[0] == (2, f"{second}/mine")
    assert cgroup._candidates("pids", proc)[-1] == (2, str(second))
