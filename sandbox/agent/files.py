"""Files in and out, in pieces: no operation here holds a file in memory or keeps the loop for long.

A file is read by its offset; the answer names the file (device and inode), so that the client sees
when another one took its place meanwhile. It is written beside its place and takes it when it is
complete: nobody ever sees half of it. All of it is done as the sandbox's user (`identity`).
"""

from __future__ import annotations

import contextlib
import os
import stat

from .frames import Refused
from .paths import FOLDER, open_regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .call import Call, Peer
    from .identity import Identity
    from .paths import Place, Roots

MAX_PIECE_BYTES = 1 << 20
MAX_PARTS = 64
NEW_MODE = 0o644
KINDS = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "folder"), (stat.S_ISLNK, "link"))


class Part:
    """A file that is being written: it has a name of its own until it is complete."""

    def __init__(self, place: Place, peer: Peer, token: int, key: str, mode: int | None) -> None:
        self.peer, self.token = peer, token
        self._mode = _mode(place, mode)
        self._name = place.name
        self._own_name = f".{place.name[:200]}.{key}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._folder = os.open(".", FOLDER, dir_fd=place.folder)
        try:
            self._descriptor = os.open(self._own_name, flags, 0o600, dir_fd=self._folder)
        except BaseException:
            os.close(self._folder)
            raise
        self.size_bytes = 0

    def append(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        self.size_bytes += len(data)

    def complete(self) -> None:
        """Take the place."""
        os.fchmod(self._descriptor, self._mode)
        os.rename(self._own_name, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._own_name = ""
        self.close()

    def close(self) -> None:
        """Leave nothing of a part that is not complete."""
        if self._own_name:
            with contextlib.suppress(OSError):
                os.unlink(self._own_name, dir_fd=self._folder)
        os.close(self._descriptor)
        os.close(self._folder)


def _mode(place: Place, wanted: int | None) -> int:
    """The wanted one, else that of the file to be replaced, else that of a new file.

    Raises:
        Refused: what is to be replaced is no regular file.
    """
    try:
        found = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
    except FileNotFoundError:
        return NEW_MODE if wanted is None else wanted
    if not stat.S_ISREG(found.st_mode):
        raise Refused("file_failed", f"{place.name} is not a regular file")
    return stat.S_IMODE(found.st_mode) if wanted is None else wanted


class Files:
    """The operations on files, and the files that are being written."""

    def __init__(self, identity: Identity, roots: Roots) -> None:
        self._identity, self._roots = identity, roots
        self._parts: dict[str, Part] = {}

    def read(self, call: Call) -> None:
        limit = min(call.count("limit", MAX_PIECE_BYTES, 1 << 62), MAX_PIECE_BYTES)
        offset = call.count("offset", 0, 1 << 62)
        with self._identity.files(), self._roots.find(call.text("path")) as place:
            descriptor = open_regular(place, os.O_RDONLY)
        try:
            found = os.fstat(descriptor)
            data = os.pread(descriptor, limit, offset)
        finally:
            os.close(descriptor)
        call.reply({"size_bytes": found.st_size, "file": f"{found.st_dev}:{found.st_ino}"}, data)

    def write(self, call: Call) -> None:
        """The first piece has `path`; pieces have a `key` unless there is only one; the last has `last`."""
        key, last = str(call.request.get("key", "")), bool(call.request.get("last", True))
        if not (key or last) or len(key) > 32 or (key and not key.isalnum()):
            raise Refused("protocol_error", "pieces of a file need a key of up to 32 letters and digits")
        part = self._parts.pop(key, None) if key else None
        with self._identity.files():
            if part is None or part.peer is not call.peer:
                part = self._begin(call, key)
            try:
                part.append(call.body)
                if last:
                    part.complete()
                else:
                    self._parts[key] = part
            except BaseException:
                part.close()
                raise
        call.reply({"size_bytes": part.size_bytes})

    def _begin(self, call: Call, key: str) -> Part:
        if call.request.get("offset", 0):
            raise Refused("file_failed", "the file that this is a piece of is not being written (any more)")
        if len(self._parts) >= MAX_PARTS:
            raise Refused("quota_exceeded", f"{MAX_PARTS} files are being written already")
        mode = call.count("mode", 0, 0o7777) if "mode" in call.request else None
        with self._roots.find(call.text("path"), make=True) as place:
            return Part(place, call.peer, int(call.request["token"]), key or os.urandom(8).hex(), mode)

    def abandon(self, call: Call) -> None:
        """The client will not send the rest of a file."""
        part = self._parts.pop(call.text("key"), None)
        if part is not None:
            with self._identity.files():
                part.close()
        call.reply({})

    def drop(self, peer: Peer | None, below_token: int = 0) -> None:
        """Forget what a connection, or an older token, left half written."""
        for key, part in list(self._parts.items()):
            if part.peer is peer or part.token < below_token:
                del self._parts[key]
                with self._identity.files():
                    part.close()

    def stat(self, call: Call) -> None:
        with self._identity.files(), self._roots.find(call.text("path"), follow=False) as place:
            found = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
        kind = next((name for test, name in KINDS if test(found.st_mode)), "other")
        about: dict[str, Any] = {"kind": kind, "size_bytes": found.st_size}
        call.reply({**about, "mode": stat.S_IMODE(found.st_mode), "modified_s": found.st_mtime})

    def folder(self, path: str, make: bool) -> int:
        """A descriptor of a folder, for its content to be packed or filled; the caller closes it.

        Raises:
            Refused, OSError: see `Roots.find`.
        """
        with self._identity.files(), self._roots.find(path, make=make) as place:
            if make and place.name != ".":
                with contextlib.suppress(FileExistsError):
                    os.mkdir(place.name, 0o777, dir_fd=place.folder)
            return os.open(place.name, FOLDER, dir_fd=place.folder)
