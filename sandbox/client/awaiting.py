"""The client that awaits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Self

from rocknroll.sandbox.client import calls
from rocknroll.sandbox.client.awaiting_lease import AsyncLease
from rocknroll.sandbox.client.calls import Event, Json
from rocknroll.sandbox.client.shared import (
    STREAM_SILENCE_S,
    event_of,
    lease_wish,
)
from rocknroll.sandbox.client.wire import AsyncWire


class AsyncClient:
    """The awaiting client; see `Client`, whose methods it has. Use as an async context manager, or `aclose` it."""

    def __init__(self, address: str | Path | None = None, token: str | None = None) -> None:
        self._wire = AsyncWire(address, token)

    async def healthz(self) -> Json:
        return await self._wire.send(calls.healthz())

    async def pools(self) -> list[Json]:
        return await self._wire.send(calls.pools())

    async def wait_ready(self, timeout_s: float = 60.0) -> None:
        """See `Client.wait_ready`."""
        await self._wire.send(calls.wait_ready(timeout_s))

    async def snapshot(self) -> list[Json]:
        return await self._wire.send(calls.snapshot())

    async def describe(self, sandbox_id: str) -> Json:
        """See `Client.describe`."""
        return await self._wire.send(calls.describe(sandbox_id))

    async def restart(self, sandbox_id: str) -> str:
        return await self._wire.send(calls.restart(sandbox_id))

    async def remove(self, sandbox_id: str) -> str:
        """See `Client.remove`."""
        return await self._wire.send(calls.remove(sandbox_id))

    async def overview(self, events: int = 200) -> Json:
        """See `Client.overview`. Of a thousand sandboxes it is half a megabyte, read in a thread."""
        call = calls.overview(events)
        async with self._wire.stream(call.method, call.path, call.timeout_s, params=dict(call.params)) as response:
            with self._wire.address.reaching():
                body = await response.aread()
        return call.read(await asyncio.to_thread(json.loads, body))

    async def commit(self, sandbox_id: str, tag: str) -> str:
        """See `Client.commit`."""
        return await self._wire.send(calls.commit(sandbox_id, tag))

    async def scale(self, pool: str, size: int, ready: int | None = None) -> Json:
        return await self._wire.send(calls.scale(pool, size, ready))

    async def alerts(self) -> list[Json]:
        """See `Client.alerts`."""
        return await self._wire.send(calls.alerts())

    async def events(self, after: int = 0, limit: int = 1_000, newest: bool = False) -> list[Event]:
        """See `Client.events`."""
        return await self._wire.send(calls.events(after, limit, newest))

    async def follow(self, after: int = 0) -> AsyncIterator[Event]:
        """See `Client.follow`."""
        async with self._wire.stream("GET", "/v1/events/stream", STREAM_SILENCE_S, params={"after": after}) as response:
            with self._wire.address.reaching():
                async for line in response.aiter_lines():
                    if (event := event_of(line)) is not None:
                        yield event

    async def metrics(self) -> str:
        async with self._wire.stream("GET", calls.metrics(), calls.QUICK_S) as response:
            with self._wire.address.reaching():
                return (await response.aread()).decode()

    async def lease(
        self,
        pool: str = "default",
        owner: str | None = None,
        ttl_s: float = 60.0,
        timeout_s: float = 60.0,
        heartbeats: bool = True,
        sandbox_id: str | None = None,
        bind_to_process: bool = False,
    ) -> AsyncLease:
        """See `Client.lease`; heartbeats run on this event loop."""
        info = await self._wire.send(
            calls.lease(lease_wish(pool, sandbox_id, owner, ttl_s, bind_to_process), timeout_s)
        )
        return AsyncLease(self._wire, info, heartbeats)

    async def held(self, token: int, heartbeats: bool = False) -> AsyncLease:
        """See `Client.held`."""
        return AsyncLease(self._wire, await self._wire.send(calls.look(token)), heartbeats)

    async def aclose(self) -> None:
        await self._wire.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
