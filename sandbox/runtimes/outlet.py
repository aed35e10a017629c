"""Where a sandbox's own output goes: a pipe, of which the last part is kept in a file of bounded size.

A sandbox that prints without end fills no disk, and keeps nobody busy: what it may print in a given
time is limited, and beyond that its writes wait. Standard library only, loaded by path in the forkserver.
"""

from __future__ import annotations

import os

READ_BYTES = 1 << 16
KEPT_BYTES = 1 << 18
"""The file never holds more; it is cut to its last half when it would."""
BURST_BYTES = 1 << 20
PAUSE_S = 0.05
"""After a burst, reading rests so long: 20 MiB a second at most."""


class Outlet:
    """The reading end of one sandbox's output."""

    def __init__(self, path: str) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = 0
        self._burst = 0
        self._quiet_since_s = 0.0
        self.resume_s = 0.0
        """Nothing is read before this time (monotonic)."""

    def drain(self, now_s: float) -> bool:
        """Read what is there, up to a burst; False once nobody can write any more."""
        if now_s >= self._quiet_since_s + PAUSE_S:
            self._burst = 0
            self._quiet_since_s = now_s
        while self._burst < BURST_BYTES:
            try:
                data = os.read(self.reader, READ_BYTES)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._burst += len(data)
            self._keep(data)
        self.resume_s = self._quiet_since_s + PAUSE_S
        return True

    def _keep(self, data: bytes) -> None:
        try:
            if self._size + len(data) > KEPT_BYTES:
                tail = os.pread(self._file, KEPT_BYTES // 2, max(0, self._size - KEPT_BYTES // 2))
                os.ftruncate(self._file, 0)
                self._size = os.write(self._file, tail)
            self._size += os.write(self._file, data)
        except OSError:
            # A full disk costs the record of the output, never the sandbox.
            return

    def close(self, now_s: float) -> None:
        """Keep what was printed last, and give the descriptors back."""
        self._burst = 0
        self.drain(now_s)
        for number in (self.reader, self._file):
            os.close(number)
