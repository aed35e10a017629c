"""One client: its hello, its frames, and what waits to be sent to it.

Until it has proved that it knows the secret it may say hello, once and briefly. A frame that breaks
the protocol is answered with an error and ends the connection. A client that does not read what it
asked for is not read from either, and is cut off before its answers fill the memory.
"""

from __future__ import annotations

import collections
import errno
import json
import os
import sys

from . import proof
from .call import Call
from .frames import Frames, Refused, pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

    from .call import Job
    from .state import State

VERSION = 2
READ_BYTES = 1 << 18
STRANGER_HEADER_BYTES = 4096
HELLO_TIMEOUT_S = 10.0
CONGESTED_BYTES = 1 << 22
MAX_WAITING_BYTES = 1 << 26


class Connection:
    """Serves until either side closes; then everything that goes on for it is cancelled."""

    def __init__(self, state: State, link: socket.socket, on_close: Callable[[Connection], Any]) -> None:
        self._state, self._loop, self._link, self._on_close = state, state.loop, link, on_close
        link.setblocking(False)
        self.jobs: dict[int, Job] = {}
        self._frames = Frames(STRANGER_HEADER_BYTES, 0)
        self._waiting: collections.deque[memoryview] = collections.deque()
        self._waiting_bytes = 0
        self._drained: list[Callable[[], Any]] = []
        self._nonces = ("", "")
        self._known = self._closing = self._closed = False
        self._loop.on_readable(link.fileno(), self._readable)
        self._deadline = self._loop.later(HELLO_TIMEOUT_S, self.close)

    def send(self, frame: bytes) -> None:
        if self._closed or self._closing:
            return
        self._waiting.append(memoryview(frame))
        self._waiting_bytes += len(frame)
        if self._waiting_bytes > MAX_WAITING_BYTES:
            self.close()
        elif len(self._waiting) == 1:
            self._write()

    def when_drained(self, callback: Callable[[], Any]) -> bool:
        """See `call.Peer`."""
        if self._waiting_bytes <= CONGESTED_BYTES or self._closed:
            return False
        self._drained.append(callback)
        return True

    def close(self) -> None:
        """Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._deadline.cancel()
        self._loop.forget(self._link.fileno())
        self._link.close()
        self._waiting.clear()
        self._state.connections.discard(self)
        self._on_close(self)
        self._state.files.drop(self)
        for job in list(self.jobs.values()):
            job.cancel()

    def _readable(self) -> None:
        try:
            data = self._link.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        try:
            for header, body in self._frames.feed(data):
                self._handle(header, body)
        except Refused as refused:
            self._error(0, refused.kind, str(refused))
            self._close_when_sent()

    def _write(self) -> None:
        try:
            while self._waiting:
                count = self._link.send(self._waiting[0])
                self._waiting_bytes -= count
                if count == len(self._waiting[0]):
                    self._waiting.popleft()
                else:
                    self._waiting[0] = self._waiting[0][count:]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
        if self._closed:
            return
        if self._closing and not self._waiting:
            self.close()
            return
        congested = self._waiting_bytes > CONGESTED_BYTES
        self._loop.on_writable(self._link.fileno(), self._write if self._waiting else None)
        self._loop.on_readable(self._link.fileno(), None if congested or self._closing else self._readable)
        if not congested:
            drained, self._drained = self._drained, []
            for callback in drained:
                callback()

    def _close_when_sent(self) -> None:
        self._closing = True
        if not self._closed:
            self._write()

    def _error(self, number: int, kind: str, message: str) -> None:
        self.send(pack(json.dumps({"id": number, "error": {"kind": kind, "message": message}}).encode()))

    def _handle(self, raw: bytes, body: bytes) -> None:
        if self._closed or self._closing:
            return
        try:
            request = json.loads(raw)
            call = Call(self, request, body)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise Refused("protocol_error", "a request needs a JSON header with id and op") from None
        if not self._known:
            self._greet(call)
            return
        try:
            if call.number in self.jobs:
                raise Refused("protocol_error", f"the id {call.number} is in use")
            if call.name == "ping":
                call.reply({})
            else:
                self._state.carry_out(call)
        except Refused as refused:
            self._error(call.number, refused.kind, str(refused))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            self._error(call.number, "protocol_error", f"bad request {call.name}: {error!r}")
        except OSError as error:
            code = errno.errorcode.get(error.errno or 0, "error")
            self._error(call.number, "file_failed", f"{call.name}: {error} ({code})")

    def _greet(self, call: Call) -> None:
        """`hello` names the client's nonce, `prove` proves; each once, nothing else, and no second try.

        Raises:
            Refused: it was something else, or no proof.
        """
        secret = self._state.secret
        if call.name == "hello" and not self._nonces[1]:
            self._nonces = (call.text("nonce"), proof.nonce())
            mine = proof.prove(secret, proof.AGENT, *self._nonces)
            call.reply({"version": VERSION, "nonce": self._nonces[1], "proof": mine})
        elif call.name == "prove" and self._nonces[1]:
            if not proof.proves(call.request.get("proof"), secret, proof.CLIENT, *self._nonces):
                raise Refused("protocol_error", "this is no proof of the secret")
            self._known = True
            self._deadline.cancel()
            self._frames = Frames()
            self._state.connections.add(self)
            python = ".".join(map(str, sys.version_info[:3]))
            call.reply({"version": VERSION, "pid": os.getpid(), "python": python, "token": self._state.token})
        else:
            raise Refused("protocol_error", "say hello first")
