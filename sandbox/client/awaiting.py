"""The client that awaits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from rocknroll.sandbox.agent.output import DEFAULT_OUTPUT_BYTES
from rocknroll.sandbox.client import calls
from rocknroll.sandbox.client.calls import Call, Event, Json, LeaseInfo, error_of
from rocknroll.sandbox.client.shared import (
    CHUNK_BYTES,
    CONNECT_S,
    FILE_SILENCE_S,
    LIMITS,
    STREAM_SILENCE_S,
    Address,
    LeaseFacts,
    ResultT,
    answer_of,
    body_of,
    event_of,
    lease_wish,
)
from rocknroll.sandbox.errors import LeaseLost, SandboxError
from rocknroll.sandbox.results import ExecResult, FileStat


class AsyncClient:
    """The awaiting client; see `Client`, whose methods it has. Use as an async context manager, or `aclose` it."""

    def __init__(self, address: str | Path | None = None, token: str | None = None) -> None:
        self._address = Address(address, token)
        self._http = httpx.AsyncClient(
            base_url=self._address.base_url,
            headers=self._address.headers,
            transport=httpx.AsyncHTTPTransport(uds=self._address.uds, limits=LIMITS) if self._address.uds else None,
            limits=LIMITS,
            trust_env=not self._address.uds,
        )

    async def healthz(self) -> Json:
        return await self._send(calls.healthz())

    async def pools(self) -> list[Json]:
        return await self._send(calls.pools())

    async def wait_ready(self, timeout_s: float = 60.0) -> None:
        """See `Client.wait_ready`."""
        await self._send(calls.wait_ready(timeout_s))

    async def snapshot(self) -> list[Json]:
        return await self._send(calls.snapshot())

    async def describe(self, sandbox_id: str) -> Json:
        """See `Client.describe`."""
        return await self._send(calls.describe(sandbox_id))

    async def restart(self, sandbox_id: str) -> str:
        return await self._send(calls.restart(sandbox_id))

    async def commit(self, sandbox_id: str, tag: str) -> str:
        """See `Client.commit`."""
        return await self._send(calls.commit(sandbox_id, tag))

    async def scale(self, pool: str, size: int, ready: int | None = None) -> Json:
        return await self._send(calls.scale(pool, size, ready))

    async def events(self, after: int = 0, limit: int = 1_000, newest: bool = False) -> list[Event]:
        """See `Client.events`."""
        return await self._send(calls.events(after, limit, newest))

    async def follow(self, after: int = 0) -> AsyncIterator[Event]:
        """See `Client.follow`."""
        async with self._stream("GET", "/v1/events/stream", STREAM_SILENCE_S, params={"after": after}) as response:
            with self._address.reaching():
                async for line in response.aiter_lines():
                    if (event := event_of(line)) is not None:
                        yield event

    async def metrics(self) -> str:
        async with self._stream("GET", calls.metrics(), calls.QUICK_S) as response:
            with self._address.reaching():
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
        info = await self._send(calls.lease(lease_wish(pool, sandbox_id, owner, ttl_s, bind_to_process), timeout_s))
        return AsyncLease(self, info, heartbeats)

    async def held(self, token: int, heartbeats: bool = False) -> AsyncLease:
        """See `Client.held`."""
        return AsyncLease(self, await self._send(calls.look(token)), heartbeats)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _send(self, call: Call[ResultT]) -> ResultT:
        with self._address.reaching():
            response = await self._http.request(
                call.method,
                call.path,
                params=dict(call.params),
                json=call.json,
                timeout=httpx.Timeout(call.timeout_s, connect=CONNECT_S),
            )
        return answer_of(call, response)

    @contextlib.asynccontextmanager
    async def _stream(self, method: str, path: str, silence_s: float, **more: Any) -> AsyncIterator[httpx.Response]:
        async with contextlib.AsyncExitStack() as stack:
            timeout = httpx.Timeout(silence_s, connect=CONNECT_S)
            with self._address.reaching():
                response = await stack.enter_async_context(self._http.stream(method, path, timeout=timeout, **more))
                if not response.is_success:
                    await response.aread()
                    raise error_of(response.status_code, body_of(response))
            yield response


class AsyncLease(LeaseFacts):
    """See `Lease`, whose methods it has."""

    def __init__(self, client: AsyncClient, info: LeaseInfo, heartbeats: bool) -> None:
        super().__init__(info)
        self._client = client
        self._beating = asyncio.create_task(self._beat()) if heartbeats else None

    async def exec(
        self,
        command: str | Sequence[str],
        timeout_s: float = 60.0,
        stdin: bytes = b"",
        cwd: str = ".",
        variables: Mapping[str, str] | None = None,
        output_bytes: int = DEFAULT_OUTPUT_BYTES,
    ) -> ExecResult:
        """See `LeasedSandbox.exec`."""
        self._check()
        call = calls.execute(self.token, command, timeout_s, stdin, cwd, variables, output_bytes)
        return await self._client._send(call)

    async def read(self, path: str) -> bytes:
        """See `Lease.read`."""
        return b"".join([chunk async for chunk in self.read_chunks(path)])

    async def read_chunks(self, path: str) -> AsyncIterator[bytes]:
        """See `Lease.read_chunks`."""
        self._check()
        stream = self._client._stream("GET", calls.files(self.token), FILE_SILENCE_S, params={"path": path})
        async with stream as response:
            with self._client._address.reaching():
                async for chunk in response.aiter_bytes(CHUNK_BYTES):
                    yield chunk

    async def write(self, path: str, data: bytes | AsyncIterable[bytes], mode: int | None = None) -> None:
        """See `Lease.write`."""
        self._check()
        params = {"path": path} if mode is None else {"path": path, "mode": mode}
        async with self._client._stream("PUT", calls.files(self.token), FILE_SILENCE_S, params=params, content=data):
            pass

    async def stat(self, path: str) -> FileStat:
        self._check()
        return await self._client._send(calls.stat(self.token, path))

    async def heartbeat(self, ttl_s: float | None = None) -> None:
        """See `Lease.heartbeat`."""
        self._check()
        self._info = await self._client._send(calls.heartbeat(self.token, ttl_s))

    async def release(self, recycle: bool = False) -> None:
        """See `Lease.release`."""
        if self._over:
            return
        self._over = "released"
        if self._beating is not None:
            self._beating.cancel()
        with contextlib.suppress(LeaseLost):
            await self._client._send(calls.release(self.token, recycle))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.release(recycle=error is not None)

    async def _beat(self) -> None:
        pause_s: float | None = self._pause_s()
        while pause_s is not None:
            await asyncio.sleep(pause_s)
            try:
                await self.heartbeat()
                pause_s = self._pause_s()
            except SandboxError as error:
                pause_s = self._noted(error)
