"""A lease of the client that awaits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rocknroll.sandbox.agent.output import DEFAULT_OUTPUT_BYTES
from rocknroll.sandbox.client import calls
from rocknroll.sandbox.client.awaiting_work import AsyncRunningCommand, AsyncSession
from rocknroll.sandbox.client.calls import Json, LeaseInfo
from rocknroll.sandbox.client.folders import in_threads, packing, unpacking
from rocknroll.sandbox.client.shared import (
    CHUNK_BYTES,
    FILE_SILENCE_S,
    LeaseFacts,
)
from rocknroll.sandbox.client.stream import env_reply, env_request
from rocknroll.sandbox.client.wire import AsyncWire
from rocknroll.sandbox.errors import LeaseLost, SandboxError, ServiceUnreachable
from rocknroll.sandbox.leased import FILE_TIMEOUT_S, REPLY_GRACE_S
from rocknroll.sandbox.results import ExecResult, FileStat
from rocknroll.sandbox.transfer import FOLDER_BYTES, FOLDER_ENTRIES


class AsyncLease(LeaseFacts):
    """See `Lease`, whose methods it has."""

    def __init__(self, wire: AsyncWire, info: LeaseInfo, heartbeats: bool) -> None:
        super().__init__(info)
        self._wire = wire
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
        return await self._wire.send(call)

    def stream(
        self,
        command: str | Sequence[str],
        timeout_s: float = 60.0,
        cwd: str = ".",
        variables: Mapping[str, str] | None = None,
    ) -> AsyncRunningCommand:
        """A command whose output is read, and whose input is written, while it runs: `async with`."""
        self._check()
        return AsyncRunningCommand(self._wire, self.token, calls.stream_wish(command, timeout_s, cwd, variables))

    async def session(self, name: str = "", cwd: str = ".", variables: Mapping[str, str] | None = None) -> AsyncSession:
        """Open a persistent shell; see `LeasedSandbox.session`."""
        self._check()
        opened = await self._wire.send(calls.open_session(self.token, name, cwd, variables))
        return AsyncSession(self._wire, self.token, opened["name"], opened["shell"])

    async def read(self, path: str) -> bytes:
        """See `Lease.read`."""
        return b"".join([chunk async for chunk in self.read_chunks(path)])

    async def read_chunks(self, path: str) -> AsyncIterator[bytes]:
        """See `Lease.read_chunks`."""
        self._check()
        stream = self._wire.stream("GET", calls.files(self.token), FILE_SILENCE_S, params={"path": path})
        async with stream as response:
            with self._wire.address.reaching():
                async for chunk in response.aiter_bytes(CHUNK_BYTES):
                    yield chunk

    async def write(self, path: str, data: bytes | AsyncIterable[bytes], mode: int | None = None) -> None:
        """See `Lease.write`."""
        self._check()
        params = {"path": path} if mode is None else {"path": path, "mode": mode}
        await self._put(calls.files(self.token), params, data)

    async def request(
        self, op: str, header: Mapping[str, Any], body: bytes = b"", timeout_s: float = FILE_TIMEOUT_S
    ) -> tuple[Json, bytes]:
        """See `Lease.request`."""
        self._check()
        framed, silence_s = env_request(op, header, body, timeout_s), timeout_s + 2 * REPLY_GRACE_S
        async with self._wire.stream("POST", calls.env(self.token), silence_s, content=framed) as response:
            with self._wire.address.reaching():
                return env_reply(await response.aread())

    async def upload(self, host_path: Path | str, path: str) -> None:
        """See `Lease.upload`."""
        self._check()
        with packing(Path(host_path)) as pieces:
            await self._put(calls.archive(self.token), {"path": path}, in_threads(pieces))

    async def download(
        self,
        path: str,
        host_path: Path | str,
        limit_bytes: int = FOLDER_BYTES,
        limit_entries: int = FOLDER_ENTRIES,
    ) -> None:
        """See `Lease.download`."""
        self._check()
        stream = self._wire.stream("GET", calls.archive(self.token), FILE_SILENCE_S, params={"path": path})
        async with stream as response:
            with unpacking(Path(host_path), limit_bytes, limit_entries) as feed, self._wire.address.reaching():
                async for piece in response.aiter_bytes(CHUNK_BYTES):
                    await asyncio.to_thread(feed, piece)

    async def stat(self, path: str) -> FileStat:
        self._check()
        return await self._wire.send(calls.stat(self.token, path))

    async def heartbeat(self, ttl_s: float | None = None) -> None:
        """See `Lease.heartbeat`."""
        self._check()
        self._info = await self._wire.send(calls.heartbeat(self.token, ttl_s))

    async def release(self, recycle: bool = False) -> None:
        """See `Lease.release`."""
        if self._over and not self._unheard:
            return
        if self._beating is not None:
            self._beating.cancel()
        with contextlib.suppress(LeaseLost):
            await self._wire.send(calls.release(self.token, recycle))
        self._released()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # What went wrong inside says more than a service that is away, and the lease ends by its time to live.
        with contextlib.suppress(*([] if error is None else [ServiceUnreachable])):
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

    async def _put(self, path: str, params: Mapping[str, Any], content: bytes | AsyncIterable[bytes]) -> None:
        async with self._wire.stream("PUT", path, FILE_SILENCE_S, params=params, content=content):
            pass
