"""Ray clusters of several raylets on this machine, as small as they can be."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import rocknroll
from rocknroll.sandbox.cluster import ClusterChoice
from rocknroll.sandbox.errors import SandboxError
from rocknroll.sandbox.node_lease import NodePolicy
from rocknroll.sandbox.spec import EnvSpec, SandboxSpec

STORE_BYTES = 80 << 20
"""The least that Ray takes; nothing is ever stored."""
SMALL = {"num_cpus": 0, "object_store_memory": STORE_BYTES}
POLICY = NodePolicy(interval_s=0.5, timeout_s=1.5, failures=3, ttl_s=8.0)
PLAYTHING = EnvSpec(entry_point="playthings:Plaything", python_path=(Path(__file__).parent / "sandbox",))
WAIT_S = 120.0
"""Only ever waited in full when a test fails."""


@contextmanager
def small_cluster(*room: int, head_room: int = 0, **everywhere: Any) -> Iterator[Any]:
    """A head, and a node for each number of `room`, which is how many sandboxes it takes."""
    from ray.cluster_utils import Cluster

    bare = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
    head = {**SMALL, **bare, "resources": {"sandboxes": head_room} if head_room else {}}
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(Path(rocknroll.__file__).parents[1])  # for the processes of the nodes
    cluster = Cluster()
    try:
        _add(cluster, {**head, **everywhere})
        for sandboxes in room:
            _add(cluster, {**SMALL, "resources": {"sandboxes": sandboxes}, **everywhere})
        yield cluster
    finally:
        cluster.shutdown()
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before


def _add(cluster: Any, options: dict[str, Any]) -> None:
    """Ray gives a node 30 s to come up, whatever the machine has to do."""
    for last in (False, False, True):
        try:
            cluster.add_node(**options, **agent_ports())
            return
        except Exception as slow:
            if last or "timed out" not in str(slow).lower():
                raise


def agent_ports() -> dict[str, int]:
    """Ports that are free now, for the agents of one node: where they choose themselves, a raylet gives them 15 s."""
    names = ("metrics_agent_port", "runtime_env_agent_port", "dashboard_agent_listen_port")
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("", 0))) for _ in names]
        return {name: server.getsockname()[1] for name, server in zip(names, taken, strict=True)}


def choice(cluster: Any) -> ClusterChoice:
    return ClusterChoice(cluster.address, "a test named it")


def playthings(**fields: Any) -> SandboxSpec:
    """Sandboxes named `box-0`, … with a Plaything in each, which are used again."""
    return SandboxSpec(name="box", **{"reuse": "reset", "env": PLAYTHING, **fields})


def kill_raylet(node: Any) -> float:
    """As by `kill -9`; returns when."""
    (raylet,) = node.all_processes["raylet"]
    killed_s = time.monotonic()
    os.kill(raylet.process.pid, signal.SIGKILL)
    raylet.process.wait()  # workers look whether its process is there, and one that nobody reaped is
    return killed_s


async def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"never happened: {what}"
        await asyncio.sleep(0.01)


async def error_of(work: Any) -> SandboxError:
    """What the work fails with."""
    try:
        await work
    except SandboxError as error:
        return error
    raise AssertionError("it did not fail")
