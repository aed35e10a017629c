"""A folder as a tar stream (GNU format), packed and unpacked in pieces; both sides of the socket use it.

What comes from the other side is not trusted: only files, folders and links are unpacked, never
over `..`, an absolute name, or a link that is in the way, and a link that would leave the folder is
refused, so that nobody who reads the result later is led elsewhere. Names that are too long to be
real and more bytes or entries than allowed are refused as they come. No module of the standard
library is asked to extract anything: `tarfile` only reads and writes single headers.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile

from .frames import Refused
from .paths import FOLDER, escapes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = tarfile.BLOCKSIZE
PIECE_BYTES = 1 << 16
MAX_NAME_BYTES = 4096
MAX_DEPTH = 128
END = bytes(2 * BLOCK)
LONG = {tarfile.GNUTYPE_LONGNAME: "name", tarfile.GNUTYPE_LONGLINK: "linkname"}


def _padding(size: int) -> int:
    return -size % BLOCK


def pack(folder: int) -> Iterator[bytes]:
    """The content of an open folder. Sockets, FIFOs and devices are left out; links are packed as they are.

    Raises:
        OSError: something in it cannot be read.
    """
    yield from _pack(folder, "")
    yield END


def _pack(folder: int, prefix: str) -> Iterator[bytes]:
    reading = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        with os.scandir(reading) as entries:
            names = sorted(entry.name for entry in entries)
    finally:
        os.close(reading)
    for name in names:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        info = tarfile.TarInfo(prefix + name)
        info.mode, info.mtime = stat.S_IMODE(found.st_mode), int(found.st_mtime)
        if stat.S_ISLNK(found.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=folder)
            yield _header(info)
        elif stat.S_ISDIR(found.st_mode):
            info.type = tarfile.DIRTYPE
            yield _header(info)
            inner = os.open(name, FOLDER, dir_fd=folder)
            try:
                yield from _pack(inner, prefix + name + "/")
            finally:
                os.close(inner)
        elif stat.S_ISREG(found.st_mode):
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            try:
                info.size = os.fstat(descriptor).st_size
                yield _header(info)
                yield from _content(descriptor, info.size)
            finally:
                os.close(descriptor)


def _header(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _content(descriptor: int, size: int) -> Iterator[bytes]:
    """Exactly `size` bytes, whatever happens to the file meanwhile."""
    left = size
    while left:
        data = os.read(descriptor, min(left, PIECE_BYTES))
        if not data:
            yield bytes(left)
            break
        left -= len(data)
        yield data
    yield bytes(_padding(size))


class Unpacker:
    """Fills an open folder with what is fed to it. A file in its way is replaced, a folder is filled.

    Raises:
        Refused: `path_escapes`, `quota_exceeded` or `file_failed` (no such stream). OSError: it cannot be written.
    """

    def __init__(self, folder: int, limit_bytes: int, limit_entries: int) -> None:
        self._folder, self._left_bytes, self._left_entries = folder, limit_bytes, limit_entries
        self._buffer = bytearray()
        self._file: int | None = None
        self._mode = 0
        self._file_left = self._skip = 0
        self._long: dict[str, str] = {}
        self._modes: list[tuple[str, int]] = []
        self._end = False

    def feed(self, data: bytes) -> None:
        self._buffer += data
        while self._step():
            continue

    def finish(self) -> None:
        """After the last piece: complete it, or complain that something is missing."""
        if not self._end or self._file is not None:
            raise Refused("file_failed", "the archive ended too early")
        for path, mode in reversed(self._modes):
            parent, name = self._parent(path)
            try:
                descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
                os.fchmod(descriptor, mode)
                os.close(descriptor)
            finally:
                os.close(parent)

    def close(self) -> None:
        """Idempotent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _step(self) -> bool:
        """Whether there was enough for something to be done."""
        buffer = self._buffer
        if self._file is not None:
            if not buffer and self._file_left:
                return False
            with memoryview(buffer)[: self._file_left] as piece:
                taken = os.write(self._file, piece) if piece else 0
            del buffer[:taken]
            self._file_left -= taken
            if self._file_left == 0:
                os.fchmod(self._file, self._mode)
                self.close()
            return True
        if self._skip:
            taken = min(self._skip, len(buffer))
            del buffer[:taken]
            self._skip -= taken
            return taken > 0
        if self._end:
            buffer.clear()
            return False
        if len(buffer) < BLOCK:
            return False
        return self._entry()

    def _entry(self) -> bool:
        block = bytes(self._buffer[:BLOCK])
        if not any(block):
            self._end = True
            return True
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise Refused("file_failed", f"this is no archive: {error}") from None
        if info.type in LONG:
            whole = BLOCK + info.size + _padding(info.size)
            if not 0 < info.size <= MAX_NAME_BYTES + 1:
                raise Refused("file_failed", f"a name of {info.size} bytes in the archive")
            if len(self._buffer) < whole:
                return False
            text = bytes(self._buffer[BLOCK : BLOCK + info.size]).rstrip(b"\0")
            self._long[LONG[info.type]] = text.decode("utf-8", "surrogateescape")
            del self._buffer[:whole]
            return True
        del self._buffer[:BLOCK]
        for field, text_value in self._long.items():
            setattr(info, field, text_value)
        self._long.clear()
        self._make(info)
        return True

    def _make(self, info: tarfile.TarInfo) -> None:
        self._left_entries -= 1
        self._left_bytes -= max(0, info.size)
        if self._left_entries < 0 or self._left_bytes < 0 or info.size < 0:
            raise Refused("quota_exceeded", "the folder has more content than it was said it may have")
        path = info.name.rstrip("/")
        parent, name = self._parent(path)
        try:
            if info.type == tarfile.DIRTYPE:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=parent)
                self._modes.append((path, info.mode & 0o777))
                os.close(os.open(name, FOLDER, dir_fd=parent))
            elif info.type == tarfile.SYMTYPE:
                _check_link(path, info.linkname)
                _remove(parent, name)
                os.symlink(info.linkname, name, dir_fd=parent)
            elif info.type in (tarfile.REGTYPE, tarfile.AREGTYPE):
                _remove(parent, name)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                self._file = os.open(name, flags, 0o600, dir_fd=parent)
                self._mode, self._file_left, self._skip = info.mode & 0o777, info.size, _padding(info.size)
            else:
                raise Refused("file_failed", f"{path} in the archive is no file, folder or link")
        finally:
            os.close(parent)

    def _parent(self, path: str) -> tuple[int, str]:
        """The open folder that a member lies in, and its name there.

        Raises:
            Refused: the path is not one below this folder. OSError: a link is in the way.
        """
        parts = path.split("/")
        if len(parts) > MAX_DEPTH or any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise escapes(path)
        here = os.open(".", FOLDER, dir_fd=self._folder)
        try:
            for part in parts[:-1]:
                inner = os.open(part, FOLDER, dir_fd=here)
                os.close(here)
                here = inner
        except BaseException:
            os.close(here)
            raise
        return here, parts[-1]


def _remove(parent: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)


def _check_link(path: str, target: str) -> None:
    """A link may point to anything below the folder, wherever it lies in it.

    Raises:
        Refused: it points out of it.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    up = 0
    while up < len(parts) and parts[up] == "..":
        up += 1
    # Further on, `..` could follow another link, and lead anywhere; each link alone stays inside, so all together do.
    if target.startswith("/") or not target or "\0" in target or up > path.count("/") or ".." in parts[up:]:
        raise escapes(f"the link {path} to {target}")
