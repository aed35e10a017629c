"""The agent's ends of the pipes to its processes."""

from __future__ import annotations

import collections
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .loop import Loop

READ_BYTES = 1 << 16
PIPE_LIMIT_BYTES = 1 << 20
"""No pipe holds more: what was written before some moment is read by then."""
TRICKLE_S = 0.02
"""Output that nobody waits for is read this often at most, so that a flood of it costs next to nothing."""
TRICKLES = 32


class Outlet:
    """What a process prints: `take` gets the data, `ended` is called once it is over."""

    def __init__(
        self, loop: Loop, descriptor: int, take: Callable[[bytes], Any], ended: Callable[[], Any] = lambda: None
    ) -> None:
        self._loop, self._descriptor, self._take, self._ended = loop, descriptor, take, ended
        self._listening = self._trickling = False
        self.open = True
        os.set_blocking(descriptor, False)
        self.listen(True)

    def listen(self, wanted: bool) -> None:
        """Whether to read. A process that prints while nobody reads waits, once the pipe is full."""
        if self.open and wanted != self._listening:
            self._listening = wanted
            self._loop.on_readable(self._descriptor, self._readable if wanted else None)

    def trickle(self, wanted: bool) -> None:
        """Read slowly from now on, or no longer so."""
        self._trickling = wanted
        self.listen(True)

    def drain(self) -> bool:
        """Take what is in the pipe now; True when it is empty, or over."""
        taken = 0
        while self.open and self._listening and taken < PIPE_LIMIT_BYTES:
            count = self._readable()
            if count == 0:
                return True
            taken += count
        return not self.open

    def _readable(self) -> int:
        try:
            data = os.read(self._descriptor, READ_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self.close()
            self._ended()
            return 0
        if self._trickling:
            self.listen(False)
            self._loop.later(TRICKLE_S, lambda: self.listen(True))
        self._take(data)
        return len(data)

    def close(self) -> None:
        """Whoever prints from now on gets a broken pipe. Idempotent."""
        if self.open:
            self.open = False
            self._loop.forget(self._descriptor)
            os.close(self._descriptor)

    def abandon(self, orphans: collections.deque[Outlet]) -> None:
        """Nobody waits for the output any more: read and drop it, or a process in the background would stand still."""
        if not self.open:
            return
        self._take, self._ended = _drop, lambda: None
        self.trickle(True)
        orphans.append(self)
        while len(orphans) > TRICKLES:
            orphans.popleft().close()


def _drop(data: bytes) -> None:
    """Take it and forget it."""


class Inlet:
    """What a process reads: data waits here until it does, `written` tells how much of it went in."""

    def __init__(self, loop: Loop, descriptor: int, written: Callable[[int], Any]) -> None:
        self._loop, self._descriptor, self._written = loop, descriptor, written
        self._waiting: collections.deque[memoryview] = collections.deque()
        self._end = False
        self.waiting_bytes = 0
        self.open = True
        os.set_blocking(descriptor, False)

    def feed(self, data: bytes, end: bool) -> None:
        """More input; `end`: and that was all."""
        if not self.open:
            self._written(len(data))
            return
        if data:
            self._waiting.append(memoryview(data))
            self.waiting_bytes += len(data)
        self._end = self._end or end
        self._write()

    def _write(self) -> None:
        done = 0
        try:
            while self._waiting:
                piece = self._waiting[0]
                count = os.write(self._descriptor, piece)
                done += count
                if count == len(piece):
                    self._waiting.popleft()
                else:
                    self._waiting[0] = piece[count:]
        except BlockingIOError:
            pass
        except OSError:  # nobody reads it any more
            done += sum(len(piece) for piece in self._waiting)
            self.close()
        self.waiting_bytes -= done
        if self.open and not self._waiting and self._end:
            self.close()
        if self.open:
            self._loop.on_writable(self._descriptor, self._write if self._waiting else None)
        if done:
            self._written(done)

    def close(self) -> None:
        """The process reads an end of file. Idempotent."""
        if self.open:
            self.open = False
            self._waiting.clear()
            self._loop.forget(self._descriptor)
            os.close(self._descriptor)
