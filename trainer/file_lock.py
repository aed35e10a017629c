"""One process at a time: a lock that ends with its holder, however that ends.

The file stays when the lock is released; that it is there says nothing, and a killed holder is in nobody's way.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

POLL_S = 0.05


class FileHeld(Exception):
    """Another process holds the lock; `pid` is its process id, if it could be read."""

    def __init__(self, path: Path, pid: int | None) -> None:
        super().__init__(f"{path} is held by process {pid if pid is not None else '(unknown)'}")
        self.pid = pid


class FileLock:
    """Held from construction to `release`.

    Raises:
        FileHeld: another process holds it, still so after `wait_s` seconds.
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path, *, wait_s: float = 0.0) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + wait_s
        while not _taken(self._file):
            if time.monotonic() >= deadline:
                holder = _holder(self._file)
                os.close(self._file)
                raise FileHeld(path, holder)
            time.sleep(POLL_S)
        os.truncate(self._file, 0)
        os.pwrite(self._file, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Let others have it; safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def is_held(path: Path) -> bool:
    """Whether some process holds the lock now; makes no file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _taken(file)
    finally:
        os.close(file)


def _taken(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(file: int) -> int | None:
    text = os.pread(file, 32, 0)
    return int(text) if text.isdigit() else None
