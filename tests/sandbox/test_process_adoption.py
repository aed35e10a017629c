"""Process sandboxes that outlive their owner: adoption by a successor, the end when none comes, sweeping."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playthings import HERE, descendants, until

from rocknroll.sandbox.channel import Channel
from rocknroll.sandbox.errors import RuntimeUnavailable, SpecInvalid, StaleToken
from rocknroll.sandbox.runtimes import cgroup
from rocknroll.sandbox.runtimes.base import Instance
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.sandbox.spec import SandboxSpec

pytestmark = pytest.mark.asyncio
SPEC = SandboxSpec()
LONG_S = 60.0


def make_runtime(folder: Path, fleet_id: str = "mine", durable_s: float = LONG_S) -> ProcessRuntime:
    return ProcessRuntime(folder=folder, fleet_id=fleet_id, durable_s=durable_s)


def crash(folder: Path, count: int = 2, fleet_id: str = "mine", durable_s: float = LONG_S) -> list[dict[str, Any]]:
    """The records of sandboxes whose owner was killed with -9."""
    command = [sys.executable, str(HERE / "durable_owner.py"), str(folder), fleet_id, str(count), str(durable_s)]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    records: list[dict[str, Any]] = json.loads(owner.stdout.readline())
    owner.kill()
    owner.wait(timeout=30)
    owner.stdout.close()
    return records


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def run(instance: Instance, command: str, token: int = 7) -> str:
    channel = await Channel.connect(instance.socket_path, instance.secret, timeout_s=30.0)
    try:
        request = {"argv": ["sh", "-c", command], "timeout_s": 30.0, "token": token}
        _, body = await channel.request("exec", request)
        return body.decode()
    finally:
        channel.close()


async def test_a_successor_adopts_the_sandboxes_of_a_killed_owner_as_they_are(folder: Path) -> None:
    records = crash(folder)
    runtime = make_runtime(folder)
    for record in records:
        instance = await runtime.adopt(SPEC, record)
        assert instance is not None
        assert instance.pid == record["pid"]
        assert instance.record == record
        assert await run(instance, "cat note; pgrep -c sleep") == "kept\n1\n"
        with pytest.raises(StaleToken):
            await run(instance, "true", token=6)
    assert await runtime.sweep({record["instance"] for record in records}) == []
    left = [record["pid"] for record in records]
    await runtime.close()
    assert not any(alive(pid) for pid in left)
    assert list(folder.iterdir()) == []


async def test_a_successor_can_be_succeeded(folder: Path) -> None:
    (record,) = crash(folder, count=1)
    for _ in range(3):
        runtime = make_runtime(folder)
        instance = await runtime.adopt(SPEC, record)
        assert instance is not None
        assert await run(instance, "cat note") == "kept\n"
        await runtime.detach()
    runtime = make_runtime(folder)
    assert await runtime.adopt(SPEC, record) is not None
    await runtime.close()


async def test_an_adopted_sandbox_is_killed_and_autopsied_like_any_other(folder: Path) -> None:
    records = crash(folder)
    runtime = make_runtime(folder)
    first, second = [await runtime.adopt(SPEC, record) for record in records]
    assert first is not None
    assert second is not None
    reasons: list[str] = []
    first.on_exit(lambda why: reasons.append(str(why)))
    os.kill(first.pid, signal.SIGKILL)
    assert await first.autopsy() == "its process was killed by signal 9"
    assert reasons == ["its process was killed by signal 9"]
    await second.kill()
    assert not alive(second.pid)
    # The forkserver of the dead owner goes with the last of its sandboxes; new ones come from one of our own.
    until(lambda: list(folder.iterdir()) == [], "the forkserver has left")
    third = await runtime.start(SPEC, "box-0.2", floor=8)
    assert await run(third, "echo new", token=8) == "new\n"
    await runtime.close()


async def test_without_a_successor_everything_ends(folder: Path) -> None:
    records = crash(folder, durable_s=0.3)
    until(lambda: not any(alive(record["pid"]) for record in records), "the sandboxes have ended")
    until(lambda: list(folder.iterdir()) == [], "the folder is empty")
    runtime = make_runtime(folder)
    assert [await runtime.adopt(SPEC, record) for record in records] == [None, None]
    await runtime.close()


async def test_a_sweep_ends_what_nobody_knows_and_nothing_of_another_fleet(folder: Path) -> None:
    known, unknown = crash(folder)
    (foreign,) = crash(folder, count=1, fleet_id="theirs")
    runtime, other = make_runtime(folder), make_runtime(folder, fleet_id="theirs")
    assert await runtime.adopt(SPEC, foreign) is None
    assert await runtime.adopt(SPEC, known) is not None
    assert await runtime.sweep({known["instance"]}) == [unknown["instance"]]
    assert not alive(unknown["pid"])
    assert alive(known["pid"])
    assert await other.adopt(SPEC, foreign) is not None
    await runtime.close()
    assert alive(foreign["pid"])
    await other.close()


async def test_a_sweep_without_adoption_ends_everything(folder: Path) -> None:
    records = crash(folder)
    runtime = make_runtime(folder)
    assert sorted(await runtime.sweep([])) == ["box-0.1", "box-1.1"]
    assert not any(alive(record["pid"]) for record in records)
    until(lambda: list(folder.iterdir()) == [], "the folder is empty")
    await runtime.close()


async def test_a_sweep_removes_what_a_killed_forkserver_left(folder: Path) -> None:
    records = crash(folder)
    server = int(Path(f"/proc/{records[0]['pid']}/stat").read_text().split()[3])
    os.kill(server, signal.SIGKILL)
    until(lambda: not any(alive(record["pid"]) for record in records), "the sandboxes died with their forkserver")
    assert list(folder.iterdir())
    runtime = make_runtime(folder)
    assert await runtime.adopt(SPEC, records[0]) is None
    assert await runtime.sweep([]) == []
    assert list(folder.iterdir()) == []
    places = (await runtime.grants()).places
    assert cgroup.remains(dict(places), Path(records[0]["server"]).name) == []
    await runtime.close()


async def test_the_sandboxes_of_a_living_owner_cannot_be_taken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocknroll.sandbox.runtimes.forklink.ADOPT_PATIENCE_S", 0.2)
    owner, thief = make_runtime(folder), make_runtime(folder)
    instance = await owner.start(SPEC, "box-0.1", floor=7)
    for attempt in (lambda: thief.adopt(SPEC, instance.record), lambda: thief.sweep([])):
        with pytest.raises(RuntimeUnavailable, match="another process holds these sandboxes"):
            await attempt()
    await thief.close()
    assert await run(instance, "echo mine") == "mine\n"
    await owner.close()


async def test_the_door_for_a_successor_is_for_its_user_and_asks_for_the_secret(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocknroll.sandbox.runtimes.forklink.ADOPT_PATIENCE_S", 0.2)
    (record,) = crash(folder, count=1)
    server = Path(record["server"])
    assert server.stat().st_mode & 0o777 == 0o700
    assert {(server / name).stat().st_mode & 0o777 for name in ("door.sock", "door.json")} == {0o600}
    true_facts = (server / "door.json").read_text()
    (server / "door.json").write_text(json.dumps({**json.loads(true_facts), "secret": "guess"}))
    stranger = make_runtime(folder)
    with pytest.raises(RuntimeUnavailable, match="cannot be taken over"):
        await stranger.adopt(SPEC, record)
    await stranger.close()
    (server / "door.json").write_text(true_facts)
    runtime = make_runtime(folder)
    assert await runtime.adopt(SPEC, record) is not None
    await runtime.close()


async def test_a_sandbox_of_another_specification_is_not_adopted_but_ended(folder: Path) -> None:
    (record,) = crash(folder, count=1)
    runtime = make_runtime(folder)
    assert await runtime.adopt(SandboxSpec(variables={"NEW": "1"}), record) is None
    assert not alive(record["pid"])
    await runtime.close()


async def test_durable_sandboxes_need_a_fleet_to_belong_to() -> None:
    with pytest.raises(SpecInvalid, match="fleet_id"):
        ProcessRuntime(durable_s=1.0)


async def test_closing_a_durable_runtime_leaves_nothing(folder: Path) -> None:
    before = set(descendants(os.getpid()))
    runtime = make_runtime(folder)
    instance = await runtime.start(SPEC, "box-0.1", floor=7)
    await run(instance, "setsid sleep 1000 &")
    await runtime.close()
    assert set(descendants(os.getpid())) <= before
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_start_that_is_cancelled_leaves_nothing(
    folder: Path, when: str, eventually: Callable[..., Any]
) -> None:
    runtime = make_runtime(folder)
    await runtime.grants()
    starting = asyncio.create_task(runtime.start(SPEC, "box-0.1", floor=7))
    if when == "after":
        await eventually(lambda: any(folder.glob("*/1/agent.sock")))
    else:
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert list(folder.glob("*/1")) == []
    await runtime.close()
