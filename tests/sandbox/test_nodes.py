"""Sandboxes on the nodes of a real Ray cluster: three raylets on this machine, one of which dies in the end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from clusters import POLICY, choice, error_of, eventually, kill_raylet, playthings, small_cluster
from playthings import HERE

from rocknroll.envs.remote import RemoteEnv
from rocknroll.sandbox.channel import Channel
from rocknroll.sandbox.errors import (
    ClusterUnavailable,
    FleetExhausted,
    ImageNotFound,
    LeaseLost,
    NodeLost,
    NotFound,
    SandboxLost,
    StaleToken,
)
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.fleetfile import parse_fleet
from rocknroll.sandbox.runtimes import ray as nodes
from rocknroll.sandbox.runtimes.ray import RayRuntime
from rocknroll.sandbox.site import Site
from rocknroll.sandbox.state_folder import StateFolder

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
SIZE = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with small_cluster(SIZE, SIZE) as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime(cluster: Any) -> AsyncIterator[RayRuntime]:
    runtime = await RayRuntime(choice(cluster), POLICY).open(SIZE)
    yield runtime
    await runtime.close()


def fleet_of(runtime: RayRuntime, size: int = SIZE, **fields: Any) -> Fleet:
    return Fleet(playthings(**fields), size, runtime, owns_runtime=False)


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


async def test_sandboxes_are_spread_and_listings_and_events_say_where(runtime: RayRuntime) -> None:
    async with fleet_of(runtime) as fleet:
        for _ in range(SIZE):
            await fleet.lease("me")
        rows = fleet.snapshot()
        assert Counter(row["node"] for row in rows) == {row["name"]: SIZE // 2 for row in runtime.nodes()}
        assert {row["runtime"] for row in rows} == {"ray"}
        started = {event.sandbox_id: event.detail for event in fleet.events() if event.kind == "started"}
        assert started == {row["id"]: f"on {row['node']}" for row in rows}
        assert [row["sandboxes"] for row in runtime.nodes()] == [SIZE // 2, SIZE // 2]
        pids = [row["pid"] for row in rows]
    assert [row["sandboxes"] for row in runtime.nodes()] == [0, 0]
    assert not any(map(alive, pids))


async def test_a_holder_can_do_there_what_it_can_do_here(runtime: RayRuntime) -> None:
    async with fleet_of(runtime, 1) as fleet, await fleet.lease("me") as sandbox:
        assert (await sandbox.exec("echo out; echo err >&2; exit 3")).exit_code == 3
        content = os.urandom(3 << 20)
        await sandbox.write("file", content)
        assert await sandbox.read("file") == content
        shell = await sandbox.session()
        await shell.run("cd /tmp; X=7")
        assert (await shell.run("echo $PWD $X")).stdout == b"/tmp 7\n"
        env = RemoteEnv(sandbox)
        assert (await env.reset(seed=1))[0] == "hello"
        assert (await env.step("look"))[0] == "look 1"


async def test_the_agent_there_refuses_an_old_token(runtime: RayRuntime) -> None:
    async with fleet_of(runtime, 1) as fleet:
        old = await fleet.lease("first", ttl_s=60.0)
        instance = fleet.instance(old.id)
        await old.release()
        async with await fleet.lease("second"):
            channel = await Channel.connect(instance.way, instance.secret, 10.0)  # as the first holder, paused
            late = channel.request("exec", {"token": old.token, "argv": ["true"], "timeout_s": 5.0})
            assert isinstance(await error_of(late), StaleToken)
            channel.close()


async def test_a_sandbox_that_dies_is_no_loss_of_its_node(runtime: RayRuntime) -> None:
    async with fleet_of(runtime, 1) as fleet:
        sandbox = await fleet.lease("me")
        (row,) = fleet.snapshot()
        os.kill(row["pid"], signal.SIGKILL)
        lost = await error_of(sandbox.exec("sleep 100"))
        assert type(lost) is SandboxLost and "signal 9" in str(lost)
        await (await fleet.lease("me")).release()
        assert {row["standing"] for row in runtime.nodes()} == {"active"}


async def test_a_draining_node_keeps_what_it_has_and_gets_nothing_new(runtime: RayRuntime) -> None:
    first, second = (row["name"] for row in runtime.nodes())
    with pytest.raises(NotFound, match=f"there are: {first}, {second}"):
        runtime.drain("nowhere")
    async with fleet_of(runtime, 2) as fleet:
        await fleet.lease("me")
        runtime.drain(first)
        try:
            fleet.scale(SIZE)
            while len({row["pid"] for row in fleet.snapshot() if row["pid"]}) < SIZE:
                await fleet.lease("me")
            assert Counter(row["node"] for row in fleet.snapshot()) == {first: 1, second: SIZE - 1}
        finally:
            runtime.drain(first, False)


async def test_a_cluster_without_room_says_what_is_missing(runtime: RayRuntime) -> None:
    with pytest.raises(ClusterUnavailable) as refused:
        await runtime.open(50)
    text = str(refused.value)
    assert "50 sandboxes are wanted" in text and f"has room for {2 * SIZE}" in text
    assert all(f"{row['name']} for {SIZE}" in text for row in runtime.nodes())
    assert f"{50 - 2 * SIZE} are missing" in text


async def test_a_folder_that_nodes_lack_is_named(runtime: RayRuntime, tmp_path: Path) -> None:
    async with fleet_of(runtime, 1, readable=(tmp_path / "games",)) as fleet:
        lost = await error_of(fleet.lease("me"))
        assert isinstance(lost, FleetExhausted) and f"has no {tmp_path / 'games'}" in str(lost)


async def test_an_image_that_no_node_has_is_named(runtime: RayRuntime) -> None:
    lost = await error_of(runtime.start(playthings(image="nobody/has:this", env=None), "box-0.1", 1))
    assert isinstance(lost, ImageNotFound) and "no node has the image nobody/has:this" in str(lost)


async def test_a_fleet_file_puts_all_its_pools_on_the_nodes(cluster: Any, runtime: RayRuntime, folder: Path) -> None:
    data = {"cluster": {"address": cluster.address}, "pools": {"red": {"size": 1}, "blue": {"size": 1}}}
    async with Site(parse_fleet(data, "test", folder), StateFolder(folder / "state")) as site:
        await site.wait_ready()
        nodes = {row["name"] for row in runtime.nodes()}
        assert {row["pool"]: row["node"] in nodes for row in site.snapshot()} == {"red": True, "blue": True}
        sandbox = await site.lease("blue", "me")
        assert (await sandbox.exec("echo $ROCKNROLL_SANDBOX")).stdout == b"blue-0.1\n"
        assert "started" in [event["kind"] for event in (await site.describe("red"))["events"]]


async def test_a_node_of_another_version_is_refused_by_name(
    cluster: Any, runtime: RayRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "versions", lambda: {"rocknroll": "9.9", "python": "2.7", "ray": "1.0"})
    newer = RayRuntime(choice(cluster), POLICY)
    try:
        with pytest.raises(ClusterUnavailable) as refused:
            await newer.open(1)
        names = [row["name"] for row in runtime.nodes()]
        assert all(f"node {name} has rocknroll " in str(refused.value) for name in names)
        assert "(here 9.9)" in str(refused.value) and "ray 2.60" in str(refused.value)
    finally:
        await newer.close()


async def test_a_node_that_the_fleet_does_not_ping_ends_its_sandboxes_and_none_is_orphaned(cluster: Any) -> None:
    path = os.pathsep.join([str(HERE), str(HERE.parent), os.environ["PYTHONPATH"]])
    owner = await asyncio.create_subprocess_exec(
        sys.executable,
        str(HERE / "node_owner.py"),
        cluster.address,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert owner.stdout is not None
    try:
        pids = [int(pid) for pid in (await owner.stdout.readline()).split()]
        assert len(pids) == 2 and all(map(alive, pids))
        owner.send_signal(signal.SIGSTOP)
        await eventually(lambda: not any(map(alive, pids)), "a fleet that stands still loses its sandboxes")
        owner.send_signal(signal.SIGCONT)
        assert await owner.stdout.readline() == b"lost node_lost\n"
        pids = [int(pid) for pid in (await owner.stdout.readline()).split()]
        assert len(pids) == 2 and all(map(alive, pids))
    finally:
        owner.kill()
        await owner.wait()
    await eventually(lambda: not any(map(alive, pids)), "sandboxes end with the process that owns them")


async def test_leases_on_a_killed_actor_are_lost_and_the_node_comes_back(runtime: RayRuntime) -> None:
    async with fleet_of(runtime) as fleet:
        held = [await fleet.lease(f"holder {number}") for number in range(SIZE)]
        lost_node = fleet.instance(held[0].id).node
        there = [sandbox for sandbox in held if fleet.instance(sandbox.id).node == lost_node]
        (actor,) = (row["pid"] for row in runtime.nodes() if row["name"] == lost_node)
        os.kill(actor, signal.SIGKILL)
        for sandbox in there:
            lost = await error_of(sandbox.exec("sleep 100"))
            assert isinstance(lost, NodeLost | LeaseLost) and lost_node in str(lost), lost
        again = [await fleet.lease("me") for _ in there]
        assert {fleet.instance(sandbox.id).node for sandbox in again}.isdisjoint({lost_node})
        await eventually(lambda: [row["standing"] for row in runtime.nodes()] == ["active"] * 2, "a new actor there")


async def test_a_killed_raylet_costs_its_sandboxes_and_nothing_else(cluster: Any, runtime: RayRuntime) -> None:
    async with fleet_of(runtime) as fleet:
        held = {sandbox.id: sandbox for sandbox in [await fleet.lease("me") for _ in range(SIZE)]}
        rows = fleet.snapshot()
        node = next(iter(cluster.worker_nodes))
        (lost_node,) = (name for name in {row["node"] for row in rows} if name.endswith(node.node_id[:6]))
        kill_raylet(node)
        for row in rows:
            if row["node"] == lost_node:
                lost = await error_of(held[row["id"]].exec("sleep 100"))
                assert isinstance(lost, NodeLost | LeaseLost), lost
            else:
                assert (await held[row["id"]].exec("true")).exit_code == 0
        for _ in range(SIZE // 2):
            await fleet.lease("me")
        now = fleet.snapshot()
        assert {row["node"] for row in now} == {row["node"] for row in rows} - {lost_node}
        details = [event.detail for event in fleet.events() if event.kind == "lost"]
        assert len(details) == SIZE // 2 and all(
            detail.startswith(f"node_lost: node {lost_node}") for detail in details
        )
        await eventually(
            lambda: not any(alive(row["pid"]) for row in rows if row["node"] == lost_node),
            "its sandboxes ended with it",
        )
