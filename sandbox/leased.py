"""A sandbox in the hands of its holder: what a lease entitles to.

Every request carries the lease's fencing token. The lease is kept alive by heartbeats, which run by
themselves on the holder's event loop until it is released; a holder whose loop stands still for
longer than the time to live loses the lease, and learns of it by LeaseLost.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from rocknroll.sandbox import transfer
from rocknroll.sandbox.activity import Activity
from rocknroll.sandbox.agent.commands import WINDOW_BYTES
from rocknroll.sandbox.agent.output import DEFAULT_OUTPUT_BYTES
from rocknroll.sandbox.channel import Channel, Exchange, Header
from rocknroll.sandbox.errors import LeaseLost, RequestTimeout, SandboxLost
from rocknroll.sandbox.lease import Lease
from rocknroll.sandbox.results import ExecResult, FileStat
from rocknroll.sandbox.running import RunningCommand
from rocknroll.sandbox.session import Session
from rocknroll.sandbox.spec import EnvSpec

HEARTBEATS_PER_TTL = 3
REPLY_GRACE_S = 10.0
"""The agent ends what runs past its deadline; a reply later than this after it means that the agent is lost."""
FILE_TIMEOUT_S = 30.0
FOLDER_TIMEOUT_S = 600.0
SESSION_TIMEOUT_S = 30.0


class Keeper(Protocol):
    """The part of the fleet that a holder talks to."""

    def heartbeat(self, lease: Lease, ttl_s: float | None = None) -> Lease: ...

    async def release(self, lease: Lease, recycle: bool) -> None: ...


class LeasedSandbox:
    """Get one from `Fleet.lease`. As a context manager it is released at the end, recycled after an exception."""

    def __init__(
        self,
        keeper: Keeper,
        lease: Lease,
        channel: Channel,
        env: EnvSpec | None,
        python: tuple[str, ...],
        heartbeats: bool,
    ) -> None:
        self.env = env
        """The environment that was made in it before it became READY."""
        self.python = python
        """Command of the Python interpreter inside."""
        self.activity = Activity()
        self._keeper, self._lease, self._channel = keeper, lease, channel
        self._over = ""
        self._timer: asyncio.TimerHandle | None = None
        if heartbeats:
            self._schedule()

    @property
    def id(self) -> str:
        return self._lease.sandbox_id

    @property
    def token(self) -> int:
        return self._lease.token

    @property
    def lost(self) -> str:
        """Why this lease is over; empty while it holds."""
        return self._over

    def heartbeat(self, ttl_s: float | None = None) -> None:
        """Move the deadline to a full time to live from now, optionally another one.

        Raises:
            LeaseLost: it is over.
        """
        self._check()
        self._lease = self._keeper.heartbeat(self._lease, ttl_s)

    async def request(
        self, op: str, header: Header, body: bytes = b"", timeout_s: float = FILE_TIMEOUT_S
    ) -> tuple[Header, bytes]:
        """One request to the agent under this lease's token; `timeout_s` is when the agent ends it.

        Raises:
            LeaseLost: the lease is over. SandboxLost: the sandbox is. SandboxError: what the agent replied.
        """
        self._check()
        fields = {"token": self._lease.token, "timeout_s": timeout_s, **header}
        asked_s = time.monotonic()
        self.activity.asked(op, asked_s)
        try:
            return await self._channel.request(op, fields, body, timeout_s + REPLY_GRACE_S)
        except RequestTimeout:
            raise
        except SandboxLost as lost:
            raise type(lost)(f"{self.id} was lost: {self._over or lost}") from None
        finally:
            self.activity.answered(op, asked_s, time.monotonic())

    def exchange(self, op: str, header: Header, timeout_s: float) -> Exchange:
        """A request that goes on, under this lease's token.

        Raises:
            LeaseLost: the lease is over. SandboxLost: the sandbox is.
        """
        self._check()
        self.activity.asked(op, time.monotonic())
        return self._channel.exchange(op, {"token": self._lease.token, "timeout_s": timeout_s, **header})

    async def exec(
        self,
        command: str | Sequence[str],
        timeout_s: float = 60.0,
        stdin: bytes = b"",
        cwd: str = ".",
        variables: Mapping[str, str] | None = None,
        output_bytes: int = DEFAULT_OUTPUT_BYTES,
    ) -> ExecResult:
        """Run a command (a string goes to `sh -c`) and return what it did; at the deadline its whole tree is killed.

        Raises:
            ExecFailed: it could not be started. LeaseLost, SandboxLost: see `request`.
        """
        fields = {**_command(command, cwd, variables), "output_bytes": output_bytes}
        return ExecResult.of(*await self.request("exec", fields, stdin, timeout_s))

    def stream(
        self,
        command: str | Sequence[str],
        timeout_s: float = 60.0,
        cwd: str = ".",
        variables: Mapping[str, str] | None = None,
    ) -> RunningCommand:
        """Run a command and read its output, and write its input, while it runs.

        Raises:
            LeaseLost, SandboxLost: see `request`. What goes wrong later is raised where its output is read.
        """
        fields = {**_command(command, cwd, variables), "window": WINDOW_BYTES}
        return RunningCommand(self.exchange("stream", fields, timeout_s))

    async def session(self, name: str = "", cwd: str = ".", variables: Mapping[str, str] | None = None) -> Session:
        """Open a persistent shell: bash, or sh where there is none. Without a name it gets one of its own.

        Raises:
            ExecFailed: it does not start. SessionBusy: there is one of this name. QuotaExceeded: there are too many.
        """
        name = name or secrets.token_hex(4)
        fields = {"name": name, "cwd": cwd, "variables": dict(variables or {})}
        header, _ = await self.request("session.open", fields, timeout_s=SESSION_TIMEOUT_S)
        return Session(self, name, str(header["shell"]))

    async def read(self, path: str) -> bytes:
        """The content of a file; relative paths start at the working directory.

        Raises:
            FileFailed: there is none, or it is not a regular file. PathEscapes: it is outside the sandbox's roots.
        """
        data = bytearray()
        await transfer.read_to(self, path, data.extend)
        return bytes(data)

    async def write(self, path: str, data: bytes, mode: int | None = None) -> None:
        """Create or replace a file, folders included; readers see the old content or the new, never a part.

        Raises:
            FileFailed: it cannot be written there. PathEscapes: it is outside the sandbox's roots.
        """
        await transfer.write_from(self, path, [data], mode)

    async def read_to(self, path: str, sink: transfer.Sink) -> int:
        """See `transfer.read_to`: a file of any size, piece by piece."""
        return await transfer.read_to(self, path, sink)

    async def write_from(self, path: str, source: transfer.Source, mode: int | None = None) -> int:
        """See `transfer.write_from`: a file of any size, piece by piece."""
        return await transfer.write_from(self, path, source, mode)

    async def upload(self, host_path: Path | str, path: str, timeout_s: float = FOLDER_TIMEOUT_S) -> None:
        """See `transfer.upload`: the content of a folder of this machine."""
        await transfer.upload(self, Path(host_path), path, timeout_s)

    async def download(
        self,
        path: str,
        host_path: Path | str,
        timeout_s: float = FOLDER_TIMEOUT_S,
        limit_bytes: int = transfer.FOLDER_BYTES,
        limit_entries: int = transfer.FOLDER_ENTRIES,
    ) -> None:
        """See `transfer.download`: the content of a folder of the sandbox."""
        await transfer.download(self, path, Path(host_path), timeout_s, limit_bytes, limit_entries)

    async def stat(self, path: str) -> FileStat:
        """What is at a path.

        Raises:
            FileFailed: nothing is.
        """
        header, _ = await self.request("stat", {"path": path})
        return FileStat(header["kind"], header["size_bytes"], header["mode"], header["modified_s"])

    async def release(self, recycle: bool = False) -> None:
        """Give it back; `recycle` asks for a fresh instance whatever the spec says. Idempotent, also after a loss."""
        if self._over:
            return
        self.revoke("released")
        await self._keeper.release(self._lease, recycle)

    def revoke(self, reason: str) -> None:
        """The fleet's word that the lease is over."""
        self._over = self._over or reason
        if self._timer is not None:
            self._timer.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.release(recycle=error is not None)

    def _check(self) -> None:
        if self._over:
            raise LeaseLost(f"the lease {self._lease.id} on {self.id} is over: {self._over}")

    def _schedule(self) -> None:
        wait_s = self._lease.ttl_s / HEARTBEATS_PER_TTL
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._beat)

    def _beat(self) -> None:
        try:
            self.heartbeat()
        except LeaseLost as lost:
            self.revoke(str(lost))
        else:
            self._schedule()


def _command(command: str | Sequence[str], cwd: str, variables: Mapping[str, str] | None) -> dict[str, Any]:
    argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
    return {"argv": argv, "cwd": cwd, "variables": dict(variables or {})}
