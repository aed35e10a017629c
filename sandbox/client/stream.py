"""The framed requests and answers of `service/working.py` (no I/O here)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rocknroll.sandbox.agent.frames import Frames, pack
from rocknroll.sandbox.client.calls import error_of, exec_result
from rocknroll.sandbox.errors import SandboxError
from rocknroll.sandbox.results import ExecResult


def env_request(op: str, header: Mapping[str, Any], body: bytes, timeout_s: float) -> bytes:
    """One frame, for the route of environments."""
    return pack(json.dumps({**header, "op": op, "timeout_s": timeout_s}).encode(), body)


def env_reply(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and body of its answer."""
    ((raw, body),) = Frames().feed(data)
    header: dict[str, Any] = json.loads(raw)
    return header, body


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
