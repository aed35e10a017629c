"""A process that owns sandboxes on the nodes of a cluster, to be stopped or killed by a test.

Prints the pids of its two sandboxes, `lost` and the kind of the error once the first lease is lost, then the pids
again.
"""

from __future__ import annotations

import asyncio
import sys

from clusters import POLICY, playthings

from rocknroll.sandbox.cluster import ClusterChoice
from rocknroll.sandbox.errors import SandboxError
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.runtimes.ray import RayRuntime


async def own(address: str) -> None:
    async with Fleet(
        playthings(), 2, await RayRuntime(ClusterChoice(address, "a test named it"), POLICY).open(2)
    ) as fleet:
        while True:
            sandboxes = [await fleet.lease("owner") for _ in range(2)]
            print(*(row["pid"] for row in fleet.snapshot()), flush=True)
            try:
                await sandboxes[0].exec(["sleep", "1000"], timeout_s=1000)
            except SandboxError as error:
                print("lost", error.kind, flush=True)
            for sandbox in sandboxes:
                await sandbox.release(recycle=True)


if __name__ == "__main__":
    asyncio.run(own(sys.argv[1]))
