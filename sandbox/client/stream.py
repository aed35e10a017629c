"""Reads the answer to a command whose output is streamed (no I/O here); `service/working.py` says what is in it."""

from __future__ import annotations

import json

from rocknroll.sandbox.agent.frames import Frames
from rocknroll.sandbox.client.calls import error_of, exec_result
from rocknroll.sandbox.errors import SandboxError
from rocknroll.sandbox.results import ExecResult


class StreamReader:
    """Fed with the bytes of the answer."""

    def __init__(self) -> None:
        self.id = ""
        """What input for the command is sent to; empty until it is known."""
        self.outcome: ExecResult | SandboxError | None = None
        self._frames = Frames()

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        """The output that came: the name of its stream, and bytes."""
        pieces = []
        for raw, body in self._frames.feed(data):
            header = json.loads(raw)
            if "stream" in header:
                pieces.append((str(header["stream"]), body))
            elif "id" in header:
                self.id = str(header["id"])
            elif "result" in header:
                self.outcome = exec_result(header["result"])
            else:
                self.outcome = error_of(header["problem"]["status"], header["problem"])
        return pieces

    def result(self) -> ExecResult:
        """How the command ended.

        Raises:
            SandboxError: it failed, or was lost.
        """
        assert self.outcome is not None, "asked before the answer was read to its end"
        if isinstance(self.outcome, SandboxError):
            raise self.outcome
        return self.outcome
