"""Files and folders in and out of a sandbox, in pieces: nothing is held in memory as a whole."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from rocknroll.sandbox.agent.commands import WINDOW_BYTES
from rocknroll.sandbox.agent.files import MAX_PIECE_BYTES as PIECE_BYTES
from rocknroll.sandbox.agent.frames import Refused
from rocknroll.sandbox.channel import Exchange, Header
from rocknroll.sandbox.errors import FileFailed, from_wire

Sink = Callable[[bytes], Awaitable[None] | None]
Source = AsyncIterable[bytes] | Iterable[bytes]
FOLDER_BYTES = 1 << 30
FOLDER_ENTRIES = 100_000
"""More than this in a folder that comes out of a sandbox is refused by default: it is not to fill the host's disk."""


class Carrier(Protocol):
    """The part of a leased sandbox that transfers talk to."""

    async def request(
        self, op: str, header: Header, body: bytes = b"", timeout_s: float = ...
    ) -> tuple[Header, bytes]: ...

    def exchange(self, op: str, header: Header, timeout_s: float) -> Exchange: ...


async def read_to(sandbox: Carrier, path: str, sink: Sink) -> int:
    """Give the content of a file to `sink`, piece by piece; returns its size in bytes.

    Raises:
        FileFailed: there is none, it is no regular file, or another one took its place meanwhile.
        PathEscapes: the path leads out of the sandbox's roots.
    """
    offset, seen = 0, ""
    while True:
        header, data = await sandbox.request("read", {"path": path, "offset": offset, "limit": PIECE_BYTES})
        if seen and header["file"] != seen:
            raise FileFailed(f"{path} was replaced by another file while it was read; read it again")
        seen = header["file"]
        if data:
            offset += len(data)
            waiting = sink(data)
            if waiting is not None:
                await waiting
        if len(data) < PIECE_BYTES:
            return offset


async def write_from(sandbox: Carrier, path: str, source: Source, mode: int | None = None) -> int:
    """Write a file from pieces of any size; it takes its place once it is complete. Returns its size in bytes.

    Raises:
        FileFailed: it cannot be written there. PathEscapes: the path leads out of the sandbox's roots.
    """
    key = secrets.token_hex(8)
    fields: dict[str, Any] = {"path": path, "key": key} if mode is None else {"path": path, "key": key, "mode": mode}
    offset, held = 0, bytearray()

    async def put(data: bytes, last: bool) -> None:
        nonlocal offset
        await sandbox.request("write", {**fields, "offset": offset, "last": last}, data)
        offset += len(data)

    try:
        async for piece in _pieces(source):
            rest = memoryview(piece)
            while len(held) + len(rest) > PIECE_BYTES:
                taken = PIECE_BYTES - len(held)
                held += rest[:taken]
                rest = rest[taken:]
                await put(bytes(held), last=False)
                held.clear()
            held += rest
        await put(bytes(held), last=True)
    except BaseException:
        if offset:
            await asyncio.shield(sandbox.request("abandon", {"key": key}))
        raise
    return offset


async def _pieces(source: Source) -> AsyncIterable[bytes]:
    if isinstance(source, AsyncIterable):
        async for piece in source:
            yield piece
    else:
        for piece in source:
            yield piece


async def upload(sandbox: Carrier, host_path: Path, path: str, timeout_s: float) -> None:
    """Copy the content of a folder of this machine into one of the sandbox, which is made if need be.

    Raises:
        FileFailed: something cannot be read here or written there. PathEscapes: a link in it leads out of it.
    """
    from rocknroll.sandbox.agent.archive import pack

    folder = os.open(host_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    exchange = sandbox.exchange("unpack", {"path": path}, timeout_s)
    try:
        pieces = pack(folder)
        while not exchange.reply.done() and (data := await asyncio.to_thread(_some, pieces)):
            await exchange.send(data)
        await exchange.send(b"", end=True)
        await ended(exchange, "unpack", path)
    finally:
        exchange.cancel()
        os.close(folder)


async def download(
    sandbox: Carrier, path: str, host_path: Path, timeout_s: float, limit_bytes: int, limit_entries: int
) -> None:
    """Copy the content of a folder of the sandbox into one of this machine, which is made if need be.

    What arrives is not trusted: names and links that lead out of the folder are refused.

    Raises:
        FileFailed: something cannot be read there or written here. PathEscapes: a name or a link leads out of the
            folder. QuotaExceeded: it is larger than allowed.
    """
    from rocknroll.sandbox.agent.archive import Unpacker

    host_path.mkdir(parents=True, exist_ok=True)
    folder = os.open(host_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    unpacker = Unpacker(folder, limit_bytes, limit_entries)
    exchange = sandbox.exchange("pack", {"path": path}, timeout_s)
    said = b""
    try:
        while (piece := await exchange.piece()) is not None:
            name, data = piece
            if name == "stdout":
                await asyncio.to_thread(unpacker.feed, data)
            else:
                said = (said + data)[-4096:]
        await ended(exchange, "pack", path, said)
        await asyncio.to_thread(unpacker.finish)
    except Refused as refused:
        raise from_wire({"kind": refused.kind, "message": str(refused)}) from None
    except OSError as error:
        raise FileFailed(f"{host_path} cannot be filled from the sandbox's {path}: {error}") from None
    finally:
        exchange.cancel()
        unpacker.close()
        os.close(folder)


def _some(pieces: Iterable[bytes]) -> bytes:
    """Pieces enough to be worth a frame; nothing: there are no more."""
    held = bytearray()
    for piece in pieces:
        held += piece
        if len(held) >= WINDOW_BYTES:
            break
    return bytes(held)


async def ended(exchange: Exchange, what: str, path: str, said: bytes = b"") -> None:
    """Return once `pack` or `unpack` is over; `said` is what it has printed on stderr so far.

    Raises:
        FileFailed, PathEscapes, QuotaExceeded: it failed.
    """
    while (piece := await exchange.piece()) is not None:
        said = (said + piece[1])[-4096:]
    header, _ = exchange.reply.result()
    if header["exit_code"] == 0:
        return
    text = said.decode(errors="replace").strip() or (
        "deadline" if header["timed_out"] else f"code {header['exit_code']}"
    )
    kind, colon, message = text.partition(": ")
    if colon and kind in ("path_escapes", "file_failed", "quota_exceeded"):
        raise from_wire({"kind": kind, "message": message})
    raise FileFailed(f"cannot {what} {path}: {text}")
