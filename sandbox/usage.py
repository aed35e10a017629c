"""CPU and memory of the processes below given ones, from one pass over /proc for all sandboxes of this machine.

A look costs some ten microseconds a process, so it is taken in a thread, only while somebody asks, and not more often
than every `LEAST_S`. Resident memory counts pages that processes share once for each of them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LEAST_S = 2.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PARENT, _USER, _SYSTEM, _RESIDENT = 1, 11, 12, 21
"""Fields of `/proc/PID/stat` behind the command's name, see proc(5)."""


@dataclass(frozen=True)
class Used:
    cpu: float | None
    """Cores since the look before; None at the first."""
    memory_bytes: int


@dataclass(frozen=True)
class _Process:
    parent: int
    ticks: int
    resident_bytes: int


class Usage:
    """Remembers the last look, so that CPU time becomes cores."""

    def __init__(self) -> None:
        self._used: dict[str, Used] = {}
        self._ticks: dict[str, int] = {}
        self._looked_s = float("-inf")
        self._looking: asyncio.Future[None] | None = None

    async def of(self, roots: Mapping[str, int]) -> Mapping[str, Used]:
        """What the process tree of each root (pid by name) uses; names whose process is gone are left out."""
        if self._looking is not None:
            await asyncio.shield(self._looking)
        elif time.monotonic() - self._looked_s >= LEAST_S:
            self._looking = asyncio.ensure_future(self._look(dict(roots)))
            try:
                await asyncio.shield(self._looking)
            finally:
                self._looking = None
        return self._used

    async def _look(self, roots: Mapping[str, int]) -> None:
        found = await asyncio.to_thread(_processes)
        now_s = time.monotonic()
        ticks, memory = _sums(found, roots)
        passed_s = now_s - self._looked_s
        self._used = {name: Used(self._cores(name, ticks[name], passed_s), memory[name]) for name in ticks}
        self._ticks, self._looked_s = dict(ticks), now_s

    def _cores(self, name: str, ticks: int, passed_s: float) -> float | None:
        before = self._ticks.get(name)
        return None if before is None else max(0, ticks - before) / _TICKS_PER_S / passed_s


def _processes() -> dict[int, _Process]:
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 (a thousand Path objects a look)
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_bytes()
            except OSError:
                continue  # it ended meanwhile
            fields = stat.rpartition(b")")[2].split()
            ticks = int(fields[_USER]) + int(fields[_SYSTEM])
            found[int(name)] = _Process(int(fields[_PARENT]), ticks, int(fields[_RESIDENT]) * _PAGE_BYTES)
    return found


def _sums(found: Mapping[int, _Process], roots: Mapping[str, int]) -> tuple[Counter[str], Counter[str]]:
    """(CPU ticks, resident bytes) of each root's tree."""
    owner: dict[int, str | None] = {pid: name for name, pid in roots.items()}
    ticks: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    for pid, process in found.items():
        name = _owner(pid, found, owner)
        if name is not None:
            ticks[name] += process.ticks
            memory[name] += process.resident_bytes
    return ticks, memory


def _owner(pid: int, found: Mapping[int, _Process], owner: dict[int, str | None]) -> str | None:
    """Whose tree a process is in; remembers it for all on the way up."""
    way = []
    while pid not in owner and pid in found:
        way.append(pid)
        owner[pid] = None  # until it is known; also ends a circle of reused pids
        pid = found[pid].parent
    name = owner.get(pid)
    owner.update(dict.fromkeys(way, name))
    return name
