"""A fleet behind its service, local or remote, whatever nodes its sandboxes live on: one request for each refresh."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from rocknroll.dashboard.snapshot import (
    EVENTS,
    AlertFacts,
    Description,
    Episode,
    EventFacts,
    FleetFacts,
    GroupFacts,
    Latency,
    LeaseFacts,
    PoolFacts,
    SandboxFacts,
    Snapshot,
    TrajectoryFacts,
)
from rocknroll.dashboard.source import SourceAway, SourceRefused
from rocknroll.sandbox.client import AsyncClient
from rocknroll.sandbox.errors import FleetClosed, SandboxError, ServiceFailed, ServiceUnreachable

PATIENCE_S = 10.0
"""A manager that does not answer a look for so long counts as away; a healthy one takes milliseconds."""
NO_RUN = "no run is looked at here; name its folder with `rock top --run DIR`"
_LOST = (ServiceUnreachable, ServiceFailed, FleetClosed)


class FleetSource:
    """`address`: a socket's path or a URL; `where`: options of `rock` that lead there, for the shell it opens."""

    def __init__(self, address: str | Path, token: str | None = None, where: tuple[str, ...] = ()) -> None:
        self.title = str(address)
        self._client = AsyncClient(address, token)
        self._where = where

    async def snapshot(self) -> Snapshot:
        async with self._asking():
            seen = await self._client.overview(EVENTS)
        return Snapshot(seen["at"], fleet=await asyncio.to_thread(fleet_facts, self.title, seen))

    async def describe(self, sandbox_id: str) -> Description:
        async with self._asking():
            return await self._client.describe(sandbox_id)

    async def logs(self, sandbox_id: str) -> str:
        return str((await self.describe(sandbox_id))["output"])

    async def events(self, after: int = 0, limit: int = 1_000) -> tuple[EventFacts, ...]:
        async with self._asking():
            rows = await self._client.events(after, limit, newest=after == 0)
        return tuple(EventFacts(row.seq, row.time, row.sandbox, row.kind, row.detail) for row in rows)

    async def restart(self, sandbox_id: str) -> None:
        async with self._asking():
            await self._client.restart(sandbox_id)

    async def remove(self, sandbox_id: str) -> None:
        async with self._asking():
            await self._client.remove(sandbox_id)

    def shell_command(self, sandbox_id: str) -> tuple[str, ...]:
        return (sys.executable, "-m", "rocknroll.sandbox.cli", "shell", *self._where, sandbox_id)

    async def groups(self, limit: int = 500) -> tuple[GroupFacts, ...]:
        raise SourceRefused(NO_RUN)

    async def trajectories(self, limit: int = 500) -> tuple[TrajectoryFacts, ...]:
        raise SourceRefused(NO_RUN)

    async def trajectory(self, trajectory_id: str) -> Episode:
        raise SourceRefused(NO_RUN)

    async def close(self) -> None:
        await self._client.aclose()

    @contextlib.asynccontextmanager
    async def _asking(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(PATIENCE_S):
                yield
        except TimeoutError:
            raise SourceAway(f"the manager at {self.title} has not answered for {PATIENCE_S:g} s") from None
        except _LOST as error:
            raise SourceAway(str(error)) from error
        except SandboxError as error:
            raise SourceRefused(str(error)) from error


def fleet_facts(address: str, seen: Mapping[str, Any]) -> FleetFacts:
    """What the service's overview says."""
    return FleetFacts(
        address=address,
        began=seen["began"],
        pools=tuple(PoolFacts(**_known(PoolFacts, row)) for row in seen["pools"]),
        sandboxes=tuple(_sandbox(row) for row in seen["sandboxes"]),
        events=tuple(EventFacts(**_known(EventFacts, row)) for row in seen["events"]),
        alerts=tuple(AlertFacts(**_known(AlertFacts, row)) for row in seen["alerts"]),
        counters=seen["counters"],
        starts=_latency(seen["starts"]),
        execs=_latency(seen["execs"]),
    )


def _sandbox(row: Mapping[str, Any]) -> SandboxFacts:
    lease = row["lease"] and LeaseFacts(**_known(LeaseFacts, row["lease"]))
    return SandboxFacts(**{**_known(SandboxFacts, row), "lease": lease})


def _latency(row: Mapping[str, Any] | None) -> Latency | None:
    return None if row is None else Latency(**_known(Latency, row))


def _known(kind: type, row: Mapping[str, Any]) -> dict[str, Any]:
    """What this version shows of a row; a newer service may say more."""
    return {name: row[name] for name in _names(kind) if name in row}


@functools.cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))
