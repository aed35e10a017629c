"""A process that owns a fleet, to be killed by a test: prints `leased` once its sandboxes work."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.sandbox.spec import EnvSpec, SandboxSpec


async def own(folder: Path) -> None:
    env = EnvSpec(entry_point="playthings:Plaything", python_path=(Path(__file__).parent,))
    async with Fleet(SandboxSpec(env=env), 2, ProcessRuntime(folder=folder)) as fleet:
        sandbox, _ = await fleet.lease("owner"), await fleet.lease("owner")
        running = asyncio.create_task(sandbox.exec("sleep 1000 & sleep 1000", timeout_s=3600))
        await sandbox.request("fence", {})
        print("leased", flush=True)
        await running


if __name__ == "__main__":
    asyncio.run(own(Path(sys.argv[1])))
