"""Folders as a stream: packed and unpacked by a fork of the agent that has become the sandbox's user.

A fork, because a folder may take minutes and the agent's only thread is for everybody; its output and
its input are a `stream` like those of a command. What it says on stderr is why it failed.
"""

from __future__ import annotations

import os

from .commands import Stream
from .frames import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .call import Call
    from .state import State

FOLDER_FD = 3
READ_BYTES = 1 << 16
LIMIT_BYTES = 1 << 50
LIMIT_ENTRIES = 1 << 24


def pack_folder(state: State, call: Call) -> None:
    """The folder at `path`, to stdout."""
    folder = state.files.folder(call.text("path"), make=False)
    _run(state, call, folder, _pack)


def unpack_folder(state: State, call: Call) -> None:
    """From stdin into the folder at `path`, which is made if need be."""
    folder = state.files.folder(call.text("path"), make=True)
    _run(state, call, folder, _unpack)


def _run(state: State, call: Call, folder: int, work: Callable[[], int]) -> None:
    def start(mark: int, streams: tuple[int, int, int]) -> int:
        return state.spawner.fork(work, mark, streams, {FOLDER_FD: folder}, None)

    try:
        Stream(state, call, start)
    finally:
        os.close(folder)


def _pack() -> int:
    from .archive import pack

    for piece in pack(FOLDER_FD):
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(1, rest) :]
    return 0


def _unpack() -> int:
    from .archive import Unpacker

    unpacker = Unpacker(FOLDER_FD, LIMIT_BYTES, LIMIT_ENTRIES)
    try:
        while data := os.read(0, READ_BYTES):
            unpacker.feed(data)
        unpacker.finish()
    except Refused as refused:
        os.write(2, f"{refused.kind}: {refused}".encode())
        return 1
    return 0
