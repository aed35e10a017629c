"""Ray clusters of several raylets on this machine, as small as they can be."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rocknroll.sandbox.cluster import ClusterChoice
from rocknroll.sandbox.errors import SandboxError
from rocknroll.sandbox.node_lease import NodePolicy
from rocknroll.sandbox.spec import EnvSpec, SandboxSpec

STORE_BYTES = 80 << 20
"""The least that Ray takes; nothing is ever stored."""
SMALL = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "node_ip_address": "127.0.0.1"}
QUIET = {"RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0", "RAY_DEDUP_LOGS": "0"}
POLICY = NodePolicy(interval_s=0.5, timeout_s=1.5, failures=3, ttl_s=8.0)
PLAYTHING = EnvSpec(entry_point="playthings:Plaything", python_path=(Path(__file__).parent / "sandbox",))
WAIT_S = 60.0
"""Only ever waited in full when a test fails."""


@contextmanager
def small_cluster(*room: int, head_room: int = 0, **everywhere: Any) -> Iterator[Any]:
    """A head, and a node for each number of `room`, which is how many sandboxes it takes."""
    from ray.cluster_utils import Cluster

    os.environ.update({**QUIET, "PYTHONPATH": os.pathsep.join(str(path) for path in package_path())})
    head = {**SMALL, "include_dashboard": False, "resources": {"sandboxes": head_room} if head_room else {}}
    cluster = Cluster(initialize_head=True, head_node_args={**head, **everywhere})
    try:
        for sandboxes in room:
            cluster.add_node(**{**SMALL, "resources": {"sandboxes": sandboxes}, **everywhere})
        yield cluster
    finally:
        cluster.shutdown()


def package_path() -> list[Path]:
    """Where this package is imported from, for processes that are not started by this one."""
    import rocknroll

    return [Path(rocknroll.__file__).parents[1]]


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
