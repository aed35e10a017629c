"""Work that goes on through the service: streamed commands, sessions, whole folders."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from playthings import HERE
from rocking import processes_mentioning
from services import serving

from rocknroll.envs.remote import RemoteEnv
from rocknroll.sandbox.client import AsyncClient, AsyncLease, Client
from rocknroll.sandbox.errors import (
    EnvError,
    ExecFailed,
    FileFailed,
    LeaseLost,
    PathEscapes,
    QuotaExceeded,
    SandboxLost,
    SessionBusy,
    SessionEnded,
    SpecInvalid,
)
from rocknroll.sandbox.site import Site

pytestmark = pytest.mark.asyncio
Eventually = Callable[[Callable[[], bool]], Awaitable[None]]


@pytest_asyncio.fixture
async def site(folder: Path) -> AsyncIterator[Site]:
    async with serving(folder) as site:
        yield site


@pytest_asyncio.fixture
async def sandbox(site: Site) -> AsyncIterator[AsyncLease]:
    async with AsyncClient(site.state.socket) as client:
        yield await client.lease("box", owner="me")


async def test_output_arrives_while_the_command_runs_and_input_reaches_it(sandbox: AsyncLease) -> None:
    async with sandbox.stream("echo ready; read a; echo got $a >&2; cat; exit 3") as running:
        pieces = aiter(running)
        assert await anext(pieces) == ("stdout", b"ready\n")
        await running.write(b"line\n")
        assert await anext(pieces) == ("stderr", b"got line\n")
        await running.write(b"\x00rest")
        await running.write_eof()
        assert b"".join([data async for _, data in pieces]) == b"\x00rest"
        result = await running.result()
        assert (result.exit_code, result.stdout, result.timed_out) == (3, b"", False)
        await running.write(b"too late")
        await running.kill()


async def test_the_blocking_client_streams_as_well(site: Site) -> None:
    def work() -> None:
        with Client(site.state.socket) as client, client.lease("box") as sandbox:
            with sandbox.stream(["sh", "-c", "cat; exit 4"]) as running:
                running.write(b"in")
                running.write_eof()
                assert list(running) == [("stdout", b"in")]
                assert running.result().exit_code == 4
            with sandbox.session() as session:
                session.run("cd /tmp; X=1")
                assert session.run("pwd; echo $X").stdout == b"/tmp\n1\n"
                assert session.shell in ("bash", "sh") and not session.interrupt()

    await asyncio.to_thread(work)


async def test_more_output_than_memory_would_hold_flows_through(sandbox: AsyncLease) -> None:
    async with sandbox.stream("head -c 100000000 /dev/zero") as running:
        total = 0
        async for _, data in running:
            total += len(data)
        assert total == 100_000_000


@pytest.mark.parametrize("how", ["kill", "leave", "deadline"])
async def test_a_stream_that_ends_takes_its_command_along(
    sandbox: AsyncLease, eventually: Eventually, how: str
) -> None:
    mark = f"10{os.getpid() % 1000:03d}.{len(how)}"
    async with sandbox.stream(f"echo on; sleep {mark}", timeout_s=0.5 if how == "deadline" else 60.0) as running:
        assert await anext(aiter(running)) == ("stdout", b"on\n")
        if how == "kill":
            await running.kill()
        if how != "leave":
            result = await running.result()
            assert result.exit_code == -9 and result.timed_out == (how == "deadline")
    await eventually(lambda: not processes_mentioning(mark))


async def test_what_cannot_be_started_is_said_where_output_is_read(sandbox: AsyncLease) -> None:
    async with sandbox.stream(["no-such-program"]) as running:
        with pytest.raises(ExecFailed, match="no-such-program"):
            await running.result()
    await sandbox.release()
    with pytest.raises(LeaseLost):
        sandbox.stream("true")


async def test_a_sandbox_that_is_lost_ends_the_stream_with_its_reason(sandbox: AsyncLease, site: Site) -> None:
    async with sandbox.stream("echo on; sleep 1000") as running:
        assert await anext(aiter(running)) == ("stdout", b"on\n")
        site.restart(sandbox.id)
        with pytest.raises(SandboxLost):
            await running.result()


async def test_a_session_remembers_and_survives_its_timeouts(sandbox: AsyncLease) -> None:
    async with await sandbox.session("mine", cwd="/", variables={"COLOUR": "red"}) as session:
        assert (await session.run("pwd; echo $COLOUR")).stdout == b"/\nred\n"
        slow = await session.run("X=kept; echo part; sleep 1000", timeout_s=0.5)
        assert (slow.timed_out, slow.stdout) == (True, b"part\n")
        assert (await session.run("echo $X")).stdout == b"kept\n"
        with pytest.raises(SessionBusy):
            await sandbox.session("mine")
        with pytest.raises(SessionEnded) as ended:
            await session.run("exit 5")
        assert ended.value.exit_code == 5


async def test_a_session_is_interrupted_from_elsewhere(sandbox: AsyncLease, eventually: Eventually) -> None:
    async with await sandbox.session() as session:
        running = asyncio.create_task(session.run("echo begun > begun; sleep 1000"))
        while (await sandbox.exec("test -e begun")).exit_code != 0:
            pass
        assert await session.interrupt()
        assert (await running).interrupted
        assert not await session.interrupt()


async def test_an_environment_is_played_through_the_service(folder: Path) -> None:
    env = {"entry_point": "playthings:Plaything", "python_path": [str(HERE)], "kwargs": {"greeting": "good day"}}
    async with (
        serving(folder, {"toys": {"env": env}}) as site,
        AsyncClient(site.state.socket) as client,
        await client.lease("toys") as sandbox,
    ):
        remote = RemoteEnv(sandbox)  # type: ignore[arg-type]  # it has what a leased sandbox has
        observation, info = await remote.reset(seed=3, options={"a": 1})
        assert (observation, info["options"]) == ("good day", {"a": 1})
        assert (await remote.step("go"))[:2] == ("go 1", 0.5)
        with pytest.raises(EnvError, match="no such drawer") as raised:
            await remote.step("raise")
        assert "Traceback" in raised.value.traceback
        with pytest.raises(SpecInvalid, match="must be one of an environment"):
            await sandbox.request("exec", {"argv": ["true"]})
        with pytest.raises(SpecInvalid, match="token is that of the path"):
            await sandbox.request("env.step", {"token": 10**9})


async def test_folders_go_both_ways_with_links_and_modes(sandbox: AsyncLease, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "data").write_bytes(os.urandom(3 << 20))
    (source / "run").write_text("#!/bin/sh")
    (source / "run").chmod(0o755)
    (source / "link").symlink_to("deep/data")
    await sandbox.upload(source, "there")
    await sandbox.download("there", tmp_path / "back")
    back = tmp_path / "back"
    assert (back / "deep" / "data").read_bytes() == (source / "deep" / "data").read_bytes()
    assert (back / "run").stat().st_mode & 0o777 == 0o755
    assert (back / "link").readlink() == Path("deep/data")


async def test_what_comes_out_of_a_sandbox_cannot_lead_astray_or_fill_the_disk(
    sandbox: AsyncLease, tmp_path: Path
) -> None:
    await sandbox.exec("mkdir -p evil big; ln -s /etc/passwd evil/link; head -c 3000000 /dev/zero > big/file")
    with pytest.raises(PathEscapes):
        await sandbox.download("evil", tmp_path / "evil")
    with pytest.raises(QuotaExceeded):
        await sandbox.download("big", tmp_path / "big", limit_bytes=1_000_000)
    with pytest.raises(FileFailed):
        await sandbox.download("nothing", tmp_path / "nothing")
    with pytest.raises(FileFailed):
        await sandbox.upload(tmp_path / "not here", "x")
    assert (await sandbox.exec("true")).exit_code == 0
