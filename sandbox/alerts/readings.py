"""What the rules of a fleet read: its pools, the disk, this process, and what nobody answers for.

One `FleetReader` belongs to one manager. What takes a moment to look at (containers, memory) is looked at once a minute
and remembered in between.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import psutil

from rocknroll.sandbox.alerts.fleet import CRASH_LOOP, DISK, LEAK, MEMORY_GROWTH, QUARANTINE, STALLED_QUEUE
from rocknroll.sandbox.alerts.growth import Growth
from rocknroll.sandbox.alerts.rule import Reading
from rocknroll.sandbox.lifecycle import State
from rocknroll.sandbox.spec import SandboxSpec

SLOW_LOOK_S = 60.0
"""Between two looks at what takes a moment."""
DISK_COUNTS_AS_BYTES = 20 << 30
"""A larger disk is nearly full by the same number of bytes as one of this size, not by the same share."""
SHOWN = 3
"""Ids that a text names."""


class HasStrays(Protocol):
    """What is read of a runtime."""

    async def strays(self, keep: Collection[str]) -> list[str]:
        """See `Runtime.strays`."""


class Watched(Protocol):
    """What is read of a fleet; see `Fleet`."""

    @property
    def spec(self) -> SandboxSpec: ...

    @property
    def runtime(self) -> HasStrays: ...

    def snapshot(self) -> list[dict[str, Any]]: ...

    def metrics(self) -> dict[str, float]: ...

    def failures(self) -> dict[str, int]: ...

    def instances(self) -> set[str]: ...


Leftovers = Callable[[], Awaitable[Sequence[str]]]
"""Names of what dead fleets left behind."""


class FleetReader:
    """Reads fleets, by the name that alerts give them; `folders` are those whose disks matter, by theirs.

    `process`: what alerts call this process. `leftovers`: asked for what dead fleets left; None: nobody asks.
    """

    def __init__(
        self,
        fleets: Mapping[str, Watched],
        folders: Mapping[str, Path],
        process: str,
        leftovers: Leftovers | None = None,
    ) -> None:
        self._fleets, self._folders, self._process, self._leftovers = fleets, folders, process, leftovers
        self._progress: dict[str, float] = {}
        self._growth = Growth()
        self._found_at: dict[tuple[str, str], float] = {}
        """When something that nobody answers for was first seen, by kind and name."""
        self._slow_at: float | None = None

    async def read(self, now: float) -> list[Reading]:
        """Everything that there is to read; `now` in seconds since the epoch, by a clock that only goes forward."""
        if self._slow_at is None or now >= self._slow_at + SLOW_LOOK_S:
            self._slow_at = now
            self._growth.add(now, psutil.Process().memory_info().rss)
            await self._look_for_strangers(now)
        return [
            *(reading for name, fleet in self._fleets.items() for reading in self._of_fleet(name, fleet)),
            *self._of_strangers(now),
            memory_reading(self._process, self._growth),
            *disk_readings(self._folders),
        ]

    def _of_fleet(self, name: str, fleet: Watched) -> Iterator[Reading]:
        rows, metrics = {row["id"]: row for row in fleet.snapshot()}, fleet.metrics()
        failures = fleet.failures()
        worst = max(failures, key=failures.__getitem__, default=None)
        if worst is not None:
            said = f"{worst} {failures[worst]} times in {fleet.spec.restart.window_s:g} s, at last because of"
            said = f"{said} {rows[worst]['last_error']}"
            yield Reading(CRASH_LOOP.name, f"pool {name}", float(failures[worst]), said)
        gone = [row for row in rows.values() if row["state"] == State.QUARANTINED]
        if gone:
            errors = f"{_named([row['id'] for row in gone])}, at last because of {gone[-1]['last_error']}"
            yield Reading(QUARANTINE.name, f"pool {name}", float(len(gone)), errors)
        yield self._of_queue(name, rows.values(), metrics)

    def _of_queue(self, name: str, rows: Any, metrics: Mapping[str, float]) -> Reading:
        """Callers that wait count as long as nothing moves, and a place is free that could be theirs."""
        progress = sum(metrics.get(kind, 0.0) for kind in ("started", "leased"))
        moved = progress != self._progress.get(name)
        self._progress[name] = progress
        free = [row for row in rows if row["lease"] is None and row["state"] not in (State.QUARANTINED, State.STOPPED)]
        waiting = 0.0 if moved or not free else metrics["waiting"]
        states = ", ".join(sorted(f"{row['id']} is {row['state']}" for row in free)[:SHOWN])
        return Reading(STALLED_QUEUE.name, f"pool {name}", waiting, states)

    async def _look_for_strangers(self, now: float) -> None:
        """What nobody answers for, with the time since when it has been there."""
        runtimes = {fleet.runtime for fleet in self._fleets.values()}
        known = {instance for fleet in self._fleets.values() for instance in fleet.instances()}
        found = {("sandboxes", name) for runtime in runtimes for name in await runtime.strays(known)}
        if self._leftovers is not None:
            found |= {("leftovers of dead fleets", name) for name in await self._leftovers()}
        self._found_at = {key: self._found_at.get(key, now) for key in found}

    def _of_strangers(self, now: float) -> Iterator[Reading]:
        for kind in sorted({kind for kind, _ in self._found_at}):
            there = {name: since for (of, name), since in self._found_at.items() if of == kind}
            yield Reading(LEAK.name, kind, now - min(there.values()), _named(sorted(there)))
        overdue = {
            row["id"]: now - row["lease"]["deadline"]
            for fleet in self._fleets.values()
            for row in fleet.snapshot()
            if row["lease"] is not None and row["lease"]["deadline"] < now
        }
        if overdue:
            yield Reading(LEAK.name, "leases past their deadline", max(overdue.values()), _named(sorted(overdue)))


def memory_reading(process: str, growth: Growth) -> Reading:
    """How much this process has grown; `process`: what alerts call it."""
    detail = f"process {os.getpid()} {growth}"
    return Reading(MEMORY_GROWTH.name, process, growth.grown_bytes() / (1 << 20), detail)


def disk_readings(folders: Mapping[str, Path]) -> Iterator[Reading]:
    """Free space where folders lie; those on one disk are read once."""
    disks: dict[int, list[str]] = {}
    for name, path in folders.items():
        disks.setdefault(path.stat().st_dev, []).append(name)
    for names in disks.values():
        path = folders[names[0]]
        disk = os.statvfs(path)
        free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
        detail = f"{free / (1 << 30):.2f} GiB of {size / (1 << 30):.0f} GiB are free at {path}"
        yield Reading(DISK.name, " and ".join(names), free / max(1, min(size, DISK_COUNTS_AS_BYTES)), detail)


def _named(names: Sequence[str]) -> str:
    return f"{', '.join(names[:SHOWN])}{f' and {len(names) - SHOWN} more' if len(names) > SHOWN else ''}"
