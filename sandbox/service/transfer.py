"""Files and folders of any size as streams of bytes, so that neither side holds one whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from rocknroll.sandbox.leased import FOLDER_TIMEOUT_S, LeasedSandbox
from rocknroll.sandbox.transfer import ended

AHEAD = 2
"""Pieces of a file that are read before the caller takes them."""
SAID_BYTES = 4096


async def file_pieces(sandbox: LeasedSandbox, path: str) -> AsyncIterator[bytes]:
    """The content of a file.

    Raises:
        FileFailed, PathEscapes: see `LeasedSandbox.read_to`.
    """
    pieces: asyncio.Queue[bytes | None] = asyncio.Queue(AHEAD)

    async def fetch() -> None:
        try:
            await sandbox.read_to(path, pieces.put)
        finally:
            await pieces.put(None)

    fetching = asyncio.create_task(fetch())
    try:
        while (piece := await pieces.get()) is not None:
            yield piece
        await fetching
    finally:
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)


async def folder_pieces(sandbox: LeasedSandbox, path: str) -> AsyncIterator[bytes]:
    """The content of a folder as a tar stream.

    Raises:
        FileFailed, PathEscapes: it cannot be read.
    """
    exchange = sandbox.exchange("pack", {"path": path}, FOLDER_TIMEOUT_S)
    said = b""
    try:
        while (piece := await exchange.piece()) is not None:
            name, data = piece
            if name == "stdout":
                yield data
            else:
                said = (said + data)[-SAID_BYTES:]
        await ended(exchange, "pack", path, said)
    finally:
        exchange.cancel()


async def fill_folder(sandbox: LeasedSandbox, path: str, tar: AsyncIterator[bytes]) -> None:
    """Unpack a tar stream into a folder, which is made if need be.

    Raises:
        FileFailed, PathEscapes, QuotaExceeded: it cannot be.
    """
    exchange = sandbox.exchange("unpack", {"path": path}, FOLDER_TIMEOUT_S)
    try:
        async for data in tar:
            await exchange.send(data)
            if exchange.reply.done():
                break
        await exchange.send(b"", end=True)
        await ended(exchange, "unpack", path)
    finally:
        exchange.cancel()
