"""A persistent shell in a sandbox. Get one from `LeasedSandbox.session`."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Protocol, Self

from rocknroll.sandbox.agent.output import DEFAULT_OUTPUT_BYTES
from rocknroll.sandbox.channel import Header
from rocknroll.sandbox.errors import SandboxError, SessionEnded
from rocknroll.sandbox.results import ExecResult

CLOSE_TIMEOUT_S = 30.0


class Requester(Protocol):
    """The part of a leased sandbox that its sessions talk to."""

    async def request(
        self, op: str, header: Header, body: bytes = b"", timeout_s: float = ...
    ) -> tuple[Header, bytes]: ...


class Session:
    """Works as a person's shell does; docs/sandbox/agent.md says where it differs. Commands of one session queue up."""

    def __init__(self, sandbox: Requester, name: str, shell: str) -> None:
        self.name, self.shell = name, shell
        """`shell` is `bash`, or `sh` where there is none."""
        self._sandbox = sandbox
        self._turn = asyncio.Lock()

    async def run(self, command: str, timeout_s: float = 60.0, output_bytes: int = DEFAULT_OUTPUT_BYTES) -> ExecResult:
        """Run a command, of any number of lines. At the deadline what it started is killed, the session goes on.

        Raises:
            SessionEnded: the command ended the shell (`exit`), or it had ended before.
            LeaseLost, SandboxLost: see `LeasedSandbox.request`.
        """
        async with self._turn:
            fields = {"name": self.name, "output_bytes": output_bytes}
            header, body = await self._sandbox.request("session.run", fields, command.encode(), timeout_s)
        result = ExecResult.of(header, body)
        if header["ended"]:
            text = (result.stdout + result.stderr)[-500:].decode(errors="replace")
            raise SessionEnded(
                f"the session {self.name!r} ended with exit code {result.exit_code}; last output: {text!r}",
                result.exit_code,
            )
        return result

    async def interrupt(self) -> bool:
        """As Ctrl-C; whether something ran. What ran has a second to clean up, then it is killed."""
        header, _ = await self._sandbox.request("session.interrupt", {"name": self.name})
        return bool(header["interrupted"])

    async def close(self) -> None:
        """End the shell and everything it ever started. Idempotent."""
        await self._sandbox.request("session.close", {"name": self.name}, timeout_s=CLOSE_TIMEOUT_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except SandboxError:
            if error is None:
                raise
