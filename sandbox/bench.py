"""How fast sandboxes are on this machine: the measurements behind `rock bench`.

Every figure is a list of single timings by the wall clock; on a busy machine compare ratios, not figures.
"""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rocknroll.sandbox.channel import Channel
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.sandbox.spec import RestartPolicy, SandboxSpec

MIB = bytes(1 << 20)
SAMPLES = {
    "start_cold": (40, 5),
    "lease_warm": (300, 20),
    "exec": (300, 20),
    "ping": (2000, 100),
    "file_1mib": (40, 5),
    "recovery": (40, 5),
    "raw_spawn": (300, 20),
}
"""How many timings: (thorough, quick)."""
READY_TIMEOUT_S = 60.0
POLL_S = 0.0005


async def measure(quick: bool) -> dict[str, Any]:
    """`figures` by name (p50 and p95 in ms, samples), `ratios`, `machine`.

    Raises:
        SandboxError: a sandbox could not be started or was lost.
    """
    spec = SandboxSpec(name="bench", reuse="reset", restart=RestartPolicy(backoff_s=0, limit=1000))
    runtime = ProcessRuntime()
    timings: dict[str, list[float]] = {}

    async def time_many(name: str, once: Callable[[], Awaitable[object]]) -> None:
        await once()
        timings[name] = []
        for _ in range(SAMPLES[name][quick]):
            began_s = time.perf_counter()
            await once()
            timings[name].append((time.perf_counter() - began_s) * 1e3)

    async with Fleet(spec, size=1, runtime=runtime) as fleet:
        sandbox = await fleet.lease("bench", timeout_s=READY_TIMEOUT_S)
        await time_many("ping", lambda: sandbox.request("fence", {}))
        await time_many("exec", lambda: sandbox.exec(["true"]))
        await time_many("file_1mib", lambda: sandbox.write("file", MIB))
        await time_many("raw_spawn", _spawn)
        await sandbox.release()

        async def lease() -> None:
            await (await fleet.lease("bench", timeout_s=READY_TIMEOUT_S)).release()

        async def recover() -> None:
            starts = fleet.metrics()["started"]
            os.kill(fleet.snapshot()[0]["pid"], signal.SIGKILL)
            while fleet.metrics()["started"] == starts:
                await asyncio.sleep(POLL_S)

        await time_many("lease_warm", lease)
        await time_many("recovery", recover)
        timings["start_cold"] = [await _start(runtime, spec) for _ in range(SAMPLES["start_cold"][quick])]
        isolation = (await runtime.isolation()).level
    figures = {name: _figure(timings[name]) for name in SAMPLES}
    return {
        "name": "rock bench",
        "runtime": "process",
        "figures": figures,
        "ratios": {"exec_over_raw": figures["exec"]["p50"] / figures["raw_spawn"]["p50"]},
        "machine": {"cores": len(os.sched_getaffinity(0)), "kernel": platform.release(), "isolation": isolation},
    }


async def _spawn() -> None:
    """What a command costs without any sandbox."""
    await asyncio.to_thread(subprocess.run, ["true"], check=True, capture_output=True)


async def _start(runtime: ProcessRuntime, spec: SandboxSpec) -> float:
    """A start without a fleet, until the agent's first answer, in ms."""
    began_s = time.perf_counter()
    instance = await runtime.start(spec, "bench-cold", floor=0)
    channel = await Channel.connect(Path(instance.socket_path), instance.secret, READY_TIMEOUT_S)
    took_ms = (time.perf_counter() - began_s) * 1e3
    channel.close()
    await instance.kill()
    return took_ms


def _figure(timings_ms: list[float]) -> dict[str, Any]:
    ordered = sorted(timings_ms)
    at = [ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.95)]
    return {"p50": round(at[0], 4), "p95": round(at[1], 4), "samples": len(ordered)}
