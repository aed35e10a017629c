"""Folders of this machine as tar streams, for both clients. What arrives is not trusted (`agent/archive.py`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path

from rocknroll.sandbox.agent.archive import Unpacker, pack
from rocknroll.sandbox.agent.frames import Refused
from rocknroll.sandbox.errors import FileFailed, from_wire


@contextlib.contextmanager
def packing(path: Path) -> Iterator[Iterator[bytes]]:
    """The content of a folder, in pieces.

    Raises:
        FileFailed: it cannot be read. PathEscapes: a link in it leads out of it.
    """
    with _in_our_words(path):
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield pack(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def unpacking(path: Path, limit_bytes: int, limit_entries: int) -> Iterator[Callable[[bytes], None]]:
    """What to feed with pieces, to fill a folder that is made if need be.

    Raises:
        FileFailed: it cannot be written, or the stream ended early. PathEscapes: a name or a link leads out of it.
        QuotaExceeded: it is larger than allowed.
    """
    with _in_our_words(path):
        path.mkdir(parents=True, exist_ok=True)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        unpacker = Unpacker(folder, limit_bytes, limit_entries)
        try:
            yield unpacker.feed
            unpacker.finish()
        finally:
            unpacker.close()
            os.close(folder)


async def in_threads(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    """The pieces, each read off the event loop."""
    reading = iter(pieces)
    while (piece := await asyncio.to_thread(next, reading, None)) is not None:
        yield piece


@contextlib.contextmanager
def _in_our_words(path: Path) -> Iterator[None]:
    try:
        yield
    except Refused as refused:
        raise from_wire({"kind": refused.kind, "message": str(refused)}) from None
    except OSError as error:
        raise FileFailed(f"{path} cannot be used: {error.strerror or error}") from error
