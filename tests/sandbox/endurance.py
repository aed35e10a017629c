"""A service under faults for a while: its manager, its holders, and what must be true and gone at the end."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml
from chaos import Account, Faults, Holder

from rocknroll.sandbox.client import AsyncClient
from rocknroll.sandbox.state_folder import StateFolder
from rocknroll.sandbox.store import Store

DURATION_S = float(os.environ.get("ROCKNROLL_CHAOS_S", "90"))
SEED = int(os.environ.get("ROCKNROLL_CHAOS_SEED", "20261121"))
SIZE, HOLDERS = 20, 12
MANAGER_EVERY_S = 40.0
SPEC: Mapping[str, Any] = {
    "size": SIZE,
    "reuse": "reset",
    "resources": {"memory_bytes": 96 << 20, "processes": 64, "scratch_bytes": 8 << 20, "work_bytes": 16 << 20},
    "health": {"interval_s": 0.5, "timeout_s": 2.0, "failures": 2, "window": 3},
    "restart": {"backoff_s": 0.1, "backoff_limit_s": 2.0, "limit": 10_000},
}


class Manager:
    """`rock up` on a state folder, which may be killed and started again."""

    def __init__(self, folder: Path, pool: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self.state = StateFolder(folder / "s")
        self._file = folder / "fleet.yaml"
        self._file.write_text(yaml.safe_dump({"pools": {"box": dict(pool)}}), encoding="utf-8")
        self._environment = {**os.environ, **environment}

    def rock(self, *arguments: str) -> None:
        code = "from rocknroll.sandbox.cli import main; main()"
        command = [sys.executable, "-c", code, *arguments, "--state", str(self.state.path)]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, f"rock {arguments}: {done.stderr}\n{self._log()}"

    async def up(self, *more: str) -> None:
        await asyncio.to_thread(self.rock, "up", "-f", str(self._file), "-d", *more)

    async def crash(self) -> None:
        """kill -9, and a new one."""
        pid = self.state.manager()
        assert pid is not None, f"the manager died by itself\n{self._log()}"
        os.kill(pid, signal.SIGKILL)
        while self.state.manager() is not None:
            await asyncio.sleep(0.01)
        await self.up()

    def _log(self) -> str:
        return self.state.log.read_text()[-5000:] if self.state.log.exists() else ""


def left_behind(folder: Path) -> list[str]:
    """Processes, mounts and sockets that have to do with the folder."""
    found = [line for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line]
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in told:
                found.append(f"process {process.name}: {told[:200]!r}")
    return found + [str(path) for path in folder.rglob("*") if path.is_socket()]


async def endure(manager: Manager, extra: dict[Callable[[], Awaitable[None]], float]) -> tuple[Account, Faults]:
    """The faults, with holders at work until they are over and every lease is accounted for."""
    stop, account = asyncio.Event(), Account()
    async with AsyncClient(manager.state.socket) as client:
        faults = Faults(client, random.Random(SEED))
        holders = [
            asyncio.create_task(Holder(client, "box", account, random.Random(SEED + number), stop).run())
            for number in range(HOLDERS)
        ]
        every_s = {manager.crash: min(MANAGER_EVERY_S, DURATION_S / 3), **extra}
        await faults.run(DURATION_S, every_s)
        stop.set()
        await asyncio.gather(*holders)
        await client.wait_ready(120.0)
    return account, faults


def check(account: Account, faults: Faults, manager: Manager, kinds: set[str]) -> None:
    report = f"seed {SEED}: {account}, faults {faults.done}"
    print(json.dumps(report))
    assert account.violations == [], report
    assert account.unaccounted == 0, report
    assert account.completed > DURATION_S / 2, report
    assert account.stale_refused > account.completed / 2, report
    assert kinds <= faults.done.keys(), report
    manager.rock("down")
    with closing(Store(manager.state.store)) as store:
        assert store.open_leases() == []
        assert {row.state for row in store.sandboxes("box")} <= {"STOPPED"}
    assert left_behind(manager.state.path) == []
    assert [*manager.state.run.rglob("*")] == []
