"""Run as process 1 of a pid namespace: has a sandbox kill all that it can reach, and says what is left."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from rocknroll.sandbox.channel import Channel
from rocknroll.sandbox.errors import SandboxError
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.sandbox.spec import SandboxSpec


async def attack(level: str, folder: Path) -> None:
    runtime = ProcessRuntime(level, folder=folder)  # type: ignore[arg-type]
    instance = await runtime.start(SandboxSpec(), "box", floor=0)
    channel = await Channel.connect(instance.socket_path, instance.secret, timeout_s=30.0)
    bystander = subprocess.Popen(["sleep", "1000"])
    request = {"argv": ["/bin/sh", "-c", "kill -9 -1"], "timeout_s": 10.0, "token": 0}
    try:
        await channel.request("exec", request, timeout_s=30.0)
        await channel.request("ping", timeout_s=30.0)
        print("held" if bystander.poll() is None else "open", flush=True)
    except SandboxError:
        print("open", flush=True)
    bystander.kill()
    await runtime.close()


if __name__ == "__main__":
    asyncio.run(attack(sys.argv[1], Path(sys.argv[2])))
