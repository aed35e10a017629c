"""A command whose output is read while it runs. Get one from `LeasedSandbox.stream`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from rocknroll.sandbox.channel import Exchange
from rocknroll.sandbox.results import ExecResult


class RunningCommand:
    """Iterate over it for (`"stdout"` or `"stderr"`, bytes), then ask for its `result`.

    Who reads slowly slows the command: the agent keeps nothing beyond a fixed window. As a context manager it is
    killed at the end unless it has ended by itself.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def __aiter__(self) -> AsyncIterator[tuple[str, bytes]]:
        return self._pieces()

    async def _pieces(self) -> AsyncIterator[tuple[str, bytes]]:
        while (piece := await self._exchange.piece()) is not None:
            yield piece

    async def write(self, data: bytes) -> None:
        """Input for the command; returns once the agent has room for more."""
        await self._exchange.send(data)

    async def write_eof(self) -> None:
        """The command reads an end of file."""
        await self._exchange.send(b"", end=True)

    def kill(self) -> None:
        """End everything the command started. Idempotent; the result says how it ended."""
        self._exchange.cancel()

    async def result(self) -> ExecResult:
        """What it did, once its output was read; the output itself is not in it. Output not read yet is dropped.

        Raises:
            ExecFailed: it could not be started. LeaseLost, SandboxLost: the sandbox is gone.
        """
        while await self._exchange.piece() is not None:
            continue
        return ExecResult.of(*self._exchange.reply.result())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._exchange.reply.done():
            self.kill()
            await asyncio.wait([self._exchange.reply])
