"""One request under way, as the operations see it: what it asks for, and how it is answered."""

from __future__ import annotations

import json
import math

from .frames import Refused, pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Protocol

    class Job(Protocol):
        """What goes on for a call after the operation returned."""

        def cancel(self) -> None:
            """Nobody waits for it any more."""

        def more(self, data: bytes, end: bool) -> None:
            """The client sent input."""

        def credit(self, count: int) -> None:
            """The client took output of so many bytes."""

    class Peer(Protocol):
        """The connection that it came over."""

        jobs: dict[int, Job]

        def send(self, frame: bytes) -> None: ...

        def when_drained(self, callback: Callable[[], Any]) -> bool:
            """False: it takes data. True: too much waits to be sent; calls back once when it no longer does."""

    Operation = Callable[["Call"], None]


class Call:
    """`reply` or `fail` once; before that any number of `chunk`."""

    __slots__ = ("body", "name", "number", "peer", "request")

    def __init__(self, peer: Peer, request: Mapping[str, Any], body: bytes) -> None:
        self.peer, self.request, self.body = peer, request, body
        self.number, self.name = int(request["id"]), str(request["op"])

    def begin(self, job: Job) -> None:
        """Input, credit and the end of the connection reach the job from now on."""
        self.peer.jobs[self.number] = job

    def reply(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        self._finish({**header, "id": self.number}, body)

    def fail(self, kind: str, message: str, body: bytes = b"") -> None:
        self._finish({"id": self.number, "error": {"kind": kind, "message": message}}, body)

    def say(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        """Something on the way: a piece of output, credit for input."""
        self.peer.send(pack(json.dumps({**header, "id": self.number, "going": True}).encode(), body))

    def _finish(self, header: Mapping[str, Any], body: bytes) -> None:
        self.peer.jobs.pop(self.number, None)
        self.peer.send(pack(json.dumps(header).encode(), body))

    def text(self, field: str) -> str:
        """A field that has to be there.

        Raises:
            Refused: it is not, is empty, or holds a NUL.
        """
        value = self.request.get(field)
        if not isinstance(value, str) or not value or "\0" in value:
            raise Refused("protocol_error", f"{self.name} needs {field}, a text")
        return value

    def seconds(self, field: str = "timeout_s") -> float:
        """A finite, not negative number.

        Raises:
            Refused: it is none.
        """
        value = self.request.get(field)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise Refused("protocol_error", f"{self.name} needs {field}, a number of seconds")
        return float(min(value, 1e9))

    def count(self, field: str, default: int, limit: int) -> int:
        """A whole number from 0 to `limit`.

        Raises:
            Refused: it is none.
        """
        value = self.request.get(field, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= limit:
            raise Refused("protocol_error", f"{field} of {self.name} has to be a whole number up to {limit}")
        return value

    def mapping(self, field: str) -> dict[str, str]:
        """Names and values, as text.

        Raises:
            Refused: it is something else.
        """
        value = self.request.get(field) or {}
        if not isinstance(value, dict):
            raise Refused("protocol_error", f"{field} of {self.name} has to be an object")
        return {str(key): str(item) for key, item in value.items()}
