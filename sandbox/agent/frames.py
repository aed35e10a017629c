"""The wire: `>II` lengths of a JSON header and of a binary body, then both.

Shared by the agent, its client and the environment's process; knows nothing of what is in a frame.
"""

from __future__ import annotations

import struct

PREFIX = struct.Struct(">II")
MAX_HEADER_BYTES = 1 << 20
MAX_BODY_BYTES = 1 << 24


class Refused(Exception):
    """A request that is answered with an error of this kind."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def pack(header: bytes, body: bytes = b"") -> bytes:
    """One frame."""
    return PREFIX.pack(len(header), len(body)) + header + body


class Frames:
    """Cuts a byte stream into frames.

    Raises:
        Refused: a frame announces more bytes than allowed; the stream is unusable from there on.
    """

    def __init__(self, max_header_bytes: int = MAX_HEADER_BYTES, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._buffer = bytearray()
        self._max_header_bytes, self._max_body_bytes = max_header_bytes, max_body_bytes

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """The frames that `data` completes, as (header, body)."""
        self._buffer += data
        buffer, frames, at = self._buffer, [], 0
        while len(buffer) - at >= PREFIX.size:
            header_bytes, body_bytes = PREFIX.unpack_from(buffer, at)
            if header_bytes > self._max_header_bytes or body_bytes > self._max_body_bytes:
                raise Refused("protocol_error", f"frame of {header_bytes} + {body_bytes} bytes is too large")
            start = at + PREFIX.size
            middle = start + header_bytes
            end = middle + body_bytes
            if len(buffer) < end:
                break
            with memoryview(buffer) as view:
                frames.append((bytes(view[start:middle]), bytes(view[middle:end])))
            at = end
        if at:
            del buffer[:at]
        return frames
