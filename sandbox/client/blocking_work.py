"""Work that goes on, for the client that blocks: commands with streamed output, and sessions."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from rocknroll.sandbox.agent.output import DEFAULT_OUTPUT_BYTES
from rocknroll.sandbox.client import calls
from rocknroll.sandbox.client.calls import Json
from rocknroll.sandbox.client.stream import StreamReader
from rocknroll.sandbox.client.wire import Wire
from rocknroll.sandbox.errors import NotFound, SandboxError, ServiceUnreachable
from rocknroll.sandbox.leased import REPLY_GRACE_S
from rocknroll.sandbox.results import ExecResult


class RunningCommand:
    """Iterate over it for (`"stdout"` or `"stderr"`, bytes), then ask for its `result`.

    Killed at the end of its `with`. Who reads slowly slows the command.
    """

    def __init__(self, wire: Wire, token: int, wish: Json) -> None:
        self._wire, self._token, self._wish = wire, token, wish
        self._reader = StreamReader()
        self._pieces: deque[tuple[str, bytes]] = deque()
        self._stack = contextlib.ExitStack()
        self._incoming: Iterator[bytes] | None = None

    def __enter__(self) -> Self:
        """Begin it.

        Raises:
            LeaseLost: the lease is over. What else goes wrong is raised where its output is read.
        """
        silence_s = float(self._wish["timeout_s"]) + 2 * REPLY_GRACE_S
        path = calls.streams(self._token)
        response = self._stack.enter_context(self._wire.stream("POST", path, silence_s, json=self._wish))
        self._incoming = response.iter_bytes()
        while not self._reader.id:
            if not self._advance():
                break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        while self._pieces or self._advance():
            while self._pieces:
                yield self._pieces.popleft()

    def write(self, data: bytes) -> None:
        """Input for the command; returns once it has room for more."""
        self._put(data, eof=False)

    def write_eof(self) -> None:
        """The command reads an end of file."""
        self._put(b"", eof=True)

    def kill(self) -> None:
        """End everything the command started. Idempotent; the result says how it ended."""
        with contextlib.suppress(NotFound):
            self._wire.send(calls.kill(self._token, self._reader.id))

    def result(self) -> ExecResult:
        """What it did; the output itself is not in it. Output not read yet is dropped.

        Raises:
            ExecFailed: it could not be started. LeaseLost, SandboxLost: the sandbox is gone.
        """
        for _ in self:
            continue
        return self._reader.result()

    def _advance(self) -> bool:
        """Take what came next; False at the end."""
        if self._incoming is None:
            return False
        with self._wire.address.reaching():
            data = next(self._incoming, None)
        if data is None:
            if self._reader.outcome is None:
                raise ServiceUnreachable("the service ended the stream of a command before its result")
            return False
        self._pieces.extend(self._reader.feed(data))
        return True

    def _put(self, data: bytes, eof: bool) -> None:
        path = f"{calls.streams(self._token)}/{self._reader.id}/stdin"
        silence_s = float(self._wish["timeout_s"])
        sending = self._wire.stream("PUT", path, silence_s, params={"eof": eof}, content=data)
        with contextlib.suppress(NotFound), sending:  # not found: it has ended, and reads no more
            pass


class Session:
    """A persistent shell; see `session.Session`. Get one from `Lease.session`."""

    def __init__(self, wire: Wire, token: int, name: str, shell: str) -> None:
        self.name, self.shell = name, shell
        self._wire, self._token = wire, token

    def run(self, command: str, timeout_s: float = 60.0, output_bytes: int = DEFAULT_OUTPUT_BYTES) -> ExecResult:
        """Run a command, of any number of lines. At the deadline what it started is killed, the session goes on.

        Raises:
            SessionEnded: the command ended the shell, or it had ended before. SessionBusy: it runs another.
        """
        return self._wire.send(calls.run(self._token, self.name, command, timeout_s, output_bytes))

    def interrupt(self) -> bool:
        """As Ctrl-C; whether something ran."""
        return self._wire.send(calls.interrupt(self._token, self.name))

    def close(self) -> None:
        """End the shell and everything it ever started. Idempotent."""
        self._wire.send(calls.close_session(self._token, self.name))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except SandboxError:
            if error is None:
                raise
