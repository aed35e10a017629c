"""A manager with leased sandboxes, to be killed by a test: as a script it prints the tokens by id and waits."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.runtimes.base import Runtime
from rocknroll.sandbox.runtimes.docker import DockerRuntime
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.sandbox.spec import SandboxSpec
from rocknroll.sandbox.store import Store

LONG_S = 600.0


def make_fleet(runtime: str, folder: Path, size: int, image: str = "") -> Fleet:
    """A fleet on the record in `folder`, which finds what an earlier one left there."""
    store = Store(folder / "fleet.db")
    made: Runtime = (
        DockerRuntime(store.fleet_id, folder, orphan_ttl_s=LONG_S)
        if runtime == "docker"
        else ProcessRuntime(folder=folder, fleet_id=store.fleet_id, durable_s=LONG_S)
    )
    return Fleet(SandboxSpec(name="box", image=image, reuse="reset"), size, made, store)


def crash(runtime: str, folder: Path, size: int, image: str = "") -> dict[str, int]:
    """Tokens of the leases, by sandbox, that a manager held when it was killed with -9."""
    command = [sys.executable, __file__, runtime, str(folder), str(size), image]
    manager = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert manager.stdout is not None
    tokens: dict[str, int] = json.loads(manager.stdout.readline())
    manager.kill()
    manager.wait(timeout=30)
    manager.stdout.close()
    return tokens


async def _manage(runtime: str, folder: Path, size: int, image: str) -> None:
    async with make_fleet(runtime, folder, size, image) as fleet:
        # Holders elsewhere, as the service has them; the last one's process is this one, which dies.
        pids = [None] * (size - 1) + [os.getpid()]
        held = [await fleet.lease("owner", heartbeats=False, owner_pid=pid) for pid in pids]
        for sandbox in held:
            await sandbox.exec(f"echo {sandbox.token} > note")
        print(json.dumps({sandbox.id: sandbox.token for sandbox in held}), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_manage(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
