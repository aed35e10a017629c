"""How fast sandboxes are on this machine: the measurements behind `rock bench`.

Every figure is a list of single timings by the wall clock. What is compared is timed in turns, so
that a busy machine treats both sides alike; there compare ratios, not figures.
"""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from rocknroll.sandbox.channel import Channel
from rocknroll.sandbox.errors import SpecInvalid
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.raw import Raw, RawDocker, RawProcess
from rocknroll.sandbox.runtimes.base import Instance, Runtime
from rocknroll.sandbox.spec import DEFAULT_IMAGE, RestartPolicy, SandboxSpec

RuntimeName = Literal["process", "docker"]
Once = Callable[[], Awaitable[float | None]]
"""Does the thing once; returns the ms it took when not all of the call counts."""
MIB = bytes(1 << 20)
SAMPLES = {
    "start_cold": (40, 5),
    "lease_warm": (300, 20),
    "exec": (300, 50),
    "session": (300, 50),
    "ping": (2000, 100),
    "file_1mib": (40, 5),
    "recovery": (40, 5),
    "raw_run": (40, 5),
    "raw_exec": (60, 10),
    "raw_spawn": (300, 20),
}
"""How many timings: (thorough, quick). Five of ours to one of raw Docker in both: the daemon is busy for a moment after
each of its own, and what is timed then is late through no fault of its own."""
READY_TIMEOUT_S = 120.0
POLL_S = 0.0005


class _Bench:
    """Timings by name, in ms."""

    def __init__(self, quick: bool) -> None:
        self.timings: dict[str, list[float]] = {}
        self._quick = quick

    async def turns(self, **things: Once) -> None:
        """Time each as often as its name says, in turns, after one go that does not count."""
        for once in things.values():
            await once()
        left = {name: SAMPLES[name][self._quick] for name in things}
        rounds = min(left.values())
        while any(left.values()):
            for name, once in things.items():
                share = -(-SAMPLES[name][self._quick] // rounds)
                for _ in range(min(share, left[name])):
                    await self._time(name, once)
                    left[name] -= 1

    async def _time(self, name: str, once: Once) -> None:
        began_s = time.perf_counter()
        took_ms = await once()
        passed_ms = (time.perf_counter() - began_s) * 1e3
        self.timings.setdefault(name, []).append(passed_ms if took_ms is None else took_ms)


async def measure(runtime: RuntimeName, quick: bool, image: str = DEFAULT_IMAGE) -> dict[str, Any]:
    """`figures` by name (p50 and p95 in ms, samples), `ratios` (ours over raw, of p50), `machine`.

    Raises:
        RuntimeUnavailable, ImageNotFound: the runtime does not work here, or there is no such image.
        SandboxError: a sandbox could not be started or was lost.
    """
    spec = SandboxSpec(
        name="bench", image=image if runtime == "docker" else "", restart=RestartPolicy(backoff_s=0, limit=1000)
    )
    made, raw = _opened(runtime, spec)
    bench = _Bench(quick)
    try:
        isolation = (await made.isolation()).level
        await raw.open()
        await _measure_fleet(bench, spec, made, raw)
        starts: dict[str, Once] = {"start_cold": lambda: _start(made, spec)}
        await bench.turns(**starts, **raw.starts())
    finally:
        await raw.close()
        await made.close()
    figures = {name: _figure(bench.timings[name]) for name in SAMPLES if name in bench.timings}
    pairs = {"exec_over_raw": ("exec", raw.exec_name), "start_over_raw": ("start_cold", "raw_run")}
    return {
        "name": "rock bench",
        "runtime": runtime,
        "figures": figures,
        "ratios": {
            name: round(figures[ours]["p50"] / figures[theirs]["p50"], 4)
            for name, (ours, theirs) in pairs.items()
            if theirs in figures
        },
        "machine": {"cores": len(os.sched_getaffinity(0)), "kernel": platform.release(), "isolation": isolation},
    }


def _opened(runtime: RuntimeName, spec: SandboxSpec) -> tuple[Runtime, Raw]:
    if runtime == "process":
        from rocknroll.sandbox.runtimes.process import ProcessRuntime

        return ProcessRuntime(), RawProcess()
    if runtime == "docker":
        from rocknroll.sandbox.runtimes.docker import DockerRuntime  # its library takes a moment to import

        return DockerRuntime("bench-" + secrets.token_hex(4)), RawDocker(spec)
    raise SpecInvalid(f"there is no runtime {runtime!r}; process and docker are possible")


async def _measure_fleet(bench: _Bench, spec: SandboxSpec, runtime: Runtime, raw: Raw) -> None:
    """What a holder does, then leases and recovery. Released sandboxes stay as they are: their restart is no lease."""
    kept = spec.model_copy(update={"reuse": "reset"})
    async with Fleet(kept, size=1, runtime=runtime, owns_runtime=False) as fleet:
        sandbox = await fleet.lease("bench", timeout_s=READY_TIMEOUT_S)

        async def execute() -> None:
            (await sandbox.exec(["true"])).check()

        async def ping() -> None:
            await sandbox.request("fence", {})

        async def transfer() -> None:
            await sandbox.write("file", MIB)

        async def lease() -> None:
            await (await fleet.lease("bench", timeout_s=READY_TIMEOUT_S)).release()

        async def recover() -> None:
            starts = fleet.metrics()["started"]
            os.kill(fleet.snapshot()[0]["pid"], signal.SIGKILL)
            while fleet.metrics()["started"] == starts:
                await asyncio.sleep(POLL_S)

        shell = await sandbox.session()

        async def command() -> None:
            (await shell.run("true")).check()

        await bench.turns(exec=execute, session=command, **raw.commands())
        await bench.turns(ping=ping, file_1mib=transfer)
        await sandbox.release()
        await bench.turns(lease_warm=lease)
        await bench.turns(recovery=recover)


async def _start(runtime: Runtime, spec: SandboxSpec) -> float:
    """A start without a fleet, until the agent's first answer, in ms."""
    began_s = time.perf_counter()
    instance: Instance = await runtime.start(spec, "bench-cold", floor=0)
    try:
        channel = await Channel.connect(instance.way, instance.secret, READY_TIMEOUT_S)
        took_ms = (time.perf_counter() - began_s) * 1e3
        channel.close()
    finally:
        await instance.kill()
    return took_ms


def _figure(timings_ms: list[float]) -> dict[str, Any]:
    ordered = sorted(timings_ms)
    at = [ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.95)]
    return {"p50": round(at[0], 4), "p95": round(at[1], 4), "samples": len(ordered)}
