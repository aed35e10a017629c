"""Sandboxes on nodes of a Ray cluster, beside the same on this machine alone; and what a killed raylet costs.

Starts a cluster of three raylets here. Requests alternate between a sandbox of the process runtime, one behind a relay,
and a call of Ray to the actor that has the relay, so that all of them meet the same machine. Then a raylet is killed
(`kill -9`) under leased sandboxes, and the time is taken until their holder knows, and until all are up elsewhere.
"""

from __future__ import annotations

import reporting  # isort: skip  (first: it mends the import path)

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

from ray.cluster_utils import Cluster

from rocknroll.sandbox.cluster import ClusterChoice
from rocknroll.sandbox.errors import SandboxError
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.nodes import cluster_runtime
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.sandbox.spec import SandboxSpec

NODES, ROOM = 2, 8
NODE = {"num_cpus": 0, "object_store_memory": 80 << 20}
WAIT_S = 60.0
SPEC = SandboxSpec(name="box", reuse="reset")


async def round_trips(address: str, samples: int) -> dict[str, float]:
    """Median milliseconds of each kind of request."""
    nodes = cluster_runtime(ClusterChoice(address, "the benchmark started it"))
    try:
        await nodes.open(2)
        async with Fleet(SPEC, 1, ProcessRuntime()) as here, Fleet(SPEC, 1, nodes, owns_runtime=False) as there:
            near, far = await here.lease("bench"), await there.lease("bench")
            link = next(iter(nodes._links.values()))
            kinds: dict[str, Callable[[], Awaitable[Any]]] = {
                "exec_here": lambda: near.exec(["true"]),
                "exec_node": lambda: far.exec(["true"]),
                "request_here": lambda: near.request("fence", {}),
                "request_node": lambda: far.request("fence", {}),
                "ray_call": lambda: link.ask("look"),
            }
            took: dict[str, list[float]] = {name: [] for name in kinds}
            for _ in range(samples):
                for name, request in kinds.items():
                    began_s = time.perf_counter()
                    await request()
                    took[name].append((time.perf_counter() - began_s) * 1e3)
            return {name: median(times) for name, times in took.items()}
    finally:
        await nodes.close()


async def recovery(cluster: Any) -> dict[str, float]:
    """Seconds from the kill of a raylet: `told` the last holder there, `up` the last replacement."""
    nodes = cluster_runtime(ClusterChoice(cluster.address, "the benchmark started it"))
    try:
        await nodes.open(ROOM)
        async with Fleet(SPEC, ROOM, nodes, owns_runtime=False) as fleet:
            held = [await fleet.lease("bench") for _ in range(ROOM)]
            node = next(iter(cluster.worker_nodes))
            there = [row["id"] for row in fleet.snapshot() if row["node"].endswith(node.node_id[:6])]
            waiting = [asyncio.create_task(lost(sandbox)) for sandbox in held if sandbox.id in there]
            await asyncio.sleep(0.5)
            began_s = time.monotonic()
            raylet = node.all_processes["raylet"][0].process
            os.kill(raylet.pid, signal.SIGKILL)
            raylet.wait()  # as init reaps it on a machine of its own: until then its workers take it for alive
            await asyncio.wait(waiting, timeout=WAIT_S)
            told_s = time.monotonic() - began_s
            for _ in there:
                await fleet.lease("bench", timeout_s=WAIT_S)
            return {"sandboxes": float(len(there)), "told_s": told_s, "up_s": time.monotonic() - began_s}
    finally:
        await nodes.close()


async def lost(sandbox: Any) -> None:
    """Return when a command of this holder fails."""
    try:
        await sandbox.exec("sleep 1000", timeout_s=1000)
    except SandboxError:
        return


def main() -> int:
    """Measure on a cluster of our own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="a few samples only")
    arguments = parser.parse_args()
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        for _ in range(NODES):
            cluster.add_node(**NODE, resources={"sandboxes": ROOM})
        times = asyncio.run(round_trips(cluster.address, 50 if arguments.quick else 500))
        after = asyncio.run(recovery(cluster))
    finally:
        cluster.shutdown()
    ratios = {
        "exec_node_over_here": times["exec_node"] / times["exec_here"],
        "request_node_over_here": times["request_node"] / times["request_here"],
        "ray_call_over_request_node": times["ray_call"] / times["request_node"],
    }
    figures = {**{f"{name}_ms": value for name, value in times.items()}, "raylet_killed": after}
    reporting.emit("nodes", ratios, figures, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
