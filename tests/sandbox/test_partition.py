"""Two hosts as network namespaces, and the network between them cut: nobody writes to what was given to another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters import POLICY, agent_ports, choice, error_of, eventually, playthings, small_cluster
from playthings import HERE

from rocknroll.sandbox.errors import LeaseLost, SandboxLost
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.runtimes.ray import RayRuntime
from rocknroll.sandbox.spec import HealthPolicy

pytestmark = [pytest.mark.long, pytest.mark.asyncio]
HOME, FAR = "10.213.77.1", "10.213.77.2"
NAME = f"rock{os.getpid()}"
"""Of the namespace; interfaces have 15 characters at most."""
QUICK = HealthPolicy(interval_s=0.5, timeout_s=0.5, failures=3, window=4)
"""Probes give a sandbox up long before its node's lease has run out."""
SETUP = (
    f"ip netns add {NAME}",
    f"ip link add {NAME}h type veth peer name {NAME}f",
    f"ip link set {NAME}f netns {NAME}",
    f"ip addr add {HOME}/30 dev {NAME}h",
    f"ip link set {NAME}h up",
    f"ip netns exec {NAME} ip addr add {FAR}/30 dev {NAME}f",
    f"ip netns exec {NAME} ip link set {NAME}f up",
    f"ip netns exec {NAME} ip link set lo up",
)


def run(*commands: str) -> None:
    for command in commands:
        done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"{command}: {done.stderr.strip()}")


@pytest.fixture
def hosts() -> Iterator[None]:
    """This one, and one that is reached over a cable of its own."""
    try:
        run(*SETUP)
    except OSError as refused:
        subprocess.run(["ip", "netns", "del", NAME], capture_output=True, check=False)
        pytest.skip(f"network namespaces are not to be had here: {refused}")
    yield
    run(f"ip netns del {NAME}")  # its end of the cable goes with it, and so does the other


@pytest.fixture
def cluster(hosts: None) -> Iterator[Any]:
    """A head with room for two sandboxes here, and a node with room for two on the far host."""
    with small_cluster(head_room=2, node_ip_address=HOME) as cluster:
        ports = agent_ports()
        start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--address={cluster.address}"]
        start += [f"--node-ip-address={FAR}", "--num-cpus=0", '--resources={"sandboxes": 2}']
        start += ["--object-store-memory=80000000", "--disable-usage-stats"]
        start += [f"--dashboard-agent-grpc-port={ports['metrics_agent_port']}"]
        start += [f"--{name.replace('_', '-')}={port}" for name, port in ports.items() if name != "metrics_agent_port"]
        thrice = ["sh", "-c", 'for _ in 1 2 3; do "$@" && break; done', "sh", *start]  # Ray gives it 30 s each time
        far = subprocess.Popen(
            ["ip", "netns", "exec", NAME, *thrice], start_new_session=True, stdout=subprocess.DEVNULL
        )
        try:
            yield cluster
        finally:
            os.killpg(far.pid, signal.SIGTERM)
            try:
                far.wait(20.0)
            except subprocess.TimeoutExpired:
                os.killpg(far.pid, signal.SIGKILL)
                far.wait()


async def test_a_partitioned_node_takes_no_write_once_its_sandbox_is_leased_again(cluster: Any, tmp_path: Path) -> None:
    import ray

    runtime = RayRuntime(choice(cluster), POLICY)
    try:
        await runtime.open(1)
        await eventually(lambda: len([row for row in ray.nodes() if row["Alive"]]) == 2, "the far host has joined")
        await eventually(lambda: len(runtime.nodes()) == 2, "the runtime has begun on it")
        async with Fleet(playthings(health=QUICK), 2, runtime, owns_runtime=False) as fleet:
            held = [await fleet.lease("first") for _ in range(2)]
            links = {link.address[0]: link for link in runtime._links.values()}
            (far,) = (sandbox for sandbox in held if fleet.instance(sandbox.id).node == links[FAR].name)
            instance = fleet.instance(far.id)
            log = tmp_path / "log"
            words = [*map(str, links[FAR].address), instance._key, instance.secret, str(far.token)]
            writer = subprocess.Popen(
                ["ip", "netns", "exec", NAME, sys.executable, str(HERE / "partition_writer.py"), *words],
                stdout=log.open("w"),
            )
            try:
                await eventually(lambda: "taken" in log.read_text(), "the holder writes")
                cut_s = time.monotonic()
                run(f"ip link set {NAME}h down")
                lost = await error_of(far.exec("sleep 100"))
                again = await fleet.lease("second")
                again_s = time.monotonic()
                assert again.id == far.id and again.token > far.token
                assert fleet.instance(far.id).node == links[HOME].name
                assert isinstance(lost, SandboxLost | LeaseLost), (
                    lost
                )  # by its own missed probes, or by its node's pings
                run(f"ip link set {NAME}h up")
                refused = len(log.read_text().splitlines()) + 5
                await eventually(lambda: len(log.read_text().splitlines()) > refused, "it goes on trying")
            finally:
                writer.kill()
                writer.wait()
            taken_s = [float(line.split()[0]) for line in log.read_text().splitlines() if line.endswith(" taken")]
            assert taken_s[-1] > cut_s, "cut off from the fleet, it could write on for a while"
            assert taken_s[-1] < again_s
            assert (await again.exec("cat note")).exit_code != 0
    finally:
        await runtime.close()
