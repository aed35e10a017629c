"""What is kept of a stream of output: its head and its tail."""

from __future__ import annotations

DEFAULT_OUTPUT_BYTES = 1 << 18
"""Kept of each stream of a command: the first and the last half."""
MAX_OUTPUT_BYTES = 1 << 22


class HeadTail:
    """The first and the last `limit / 2` bytes of a stream, and how many were cut between them."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def feed(self, data: bytes) -> None:
        self._total += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 4 * self._half:
            del self._tail[: -self._half]

    def result(self) -> tuple[bytes, int]:
        """(kept bytes, bytes cut)."""
        tail = bytes(self._tail[-self._half :])
        return bytes(self._head) + tail, self._total - len(self._head) - len(tail)

    def missed(self, count: int) -> None:
        """So many more bytes were there that nobody has."""
        self._total += count
