"""A process that owns durable sandboxes, to be killed by a test: prints their records once they answer."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from rocknroll.sandbox.channel import Channel
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.sandbox.spec import SandboxSpec


async def own(folder: Path, fleet_id: str, count: int, durable_s: float) -> None:
    runtime = ProcessRuntime(folder=folder, fleet_id=fleet_id, durable_s=durable_s)
    instances = [await runtime.start(SandboxSpec(), f"box-{number}.1", floor=7) for number in range(count)]
    for instance in instances:
        channel = await Channel.connect(instance.socket_path, instance.secret, timeout_s=30.0)
        command = {"argv": ["sh", "-c", "echo kept > note; setsid sleep 1000 &"], "timeout_s": 30.0, "token": 7}
        await channel.request("exec", command)
    print(json.dumps([dict(instance.record) for instance in instances]), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(own(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
