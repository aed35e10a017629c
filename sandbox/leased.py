"""A sandbox in the hands of its holder: what a lease entitles to.

Every request carries the lease's fencing token. The lease is kept alive by heartbeats, which run by
themselves on the holder's event loop until it is released; a holder whose loop stands still for
longer than the time to live loses the lease, and learns of it by LeaseLost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from rocknroll.sandbox.agent import DEFAULT_OUTPUT_BYTES, MAX_BODY_BYTES
from rocknroll.sandbox.channel import Channel, Header
from rocknroll.sandbox.errors import ExecFailed, ExecTimeout, LeaseLost, RequestTimeout, SandboxLost
from rocknroll.sandbox.lease import Lease
from rocknroll.sandbox.spec import EnvSpec

HEARTBEATS_PER_TTL = 3
REPLY_GRACE_S = 10.0
"""The agent ends what runs past its deadline; a reply later than this after it means that the agent is lost."""
FILE_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class ExecResult:
    """What a command did. `exit_code` is negative when a signal ended it."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    stdout_cut_bytes: int
    stderr_cut_bytes: int
    timed_out: bool
    wall_s: float

    def check(self) -> Self:
        """This result, if the command succeeded.

        Raises:
            ExecTimeout: it was killed at its deadline; ExecFailed: it ended with another code than 0.
        """
        if self.timed_out:
            raise ExecTimeout(f"killed at its deadline after {self.wall_s:.1f} s; {self._tail()}")
        if self.exit_code != 0:
            raise ExecFailed(f"exit code {self.exit_code}; {self._tail()}")
        return self

    def _tail(self) -> str:
        return f"last output: {(self.stderr or self.stdout)[-500:].decode(errors='replace')!r}"


@dataclass(frozen=True)
class FileStat:
    """`kind` is `file`, `folder`, `link` or `other`; links are not followed."""

    kind: str
    size_bytes: int
    mode: int
    modified_s: float


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
        try:
            return await self._channel.request(op, fields, body, timeout_s + REPLY_GRACE_S)
        except RequestTimeout:
            raise
        except SandboxLost as lost:
            raise SandboxLost(f"{self.id} was lost: {self._over or lost}") from None

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
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        fields: dict[str, Any] = {
            "argv": argv,
            "cwd": cwd,
            "variables": dict(variables or {}),
            "output_bytes": output_bytes,
        }
        header, body = await self.request("exec", fields, stdin, timeout_s)
        split = int(header["stdout_bytes"])
        return ExecResult(
            exit_code=int(header["exit_code"]),
            stdout=body[:split],
            stderr=body[split:],
            stdout_cut_bytes=int(header["stdout_cut"]),
            stderr_cut_bytes=int(header["stderr_cut"]),
            timed_out=bool(header["timed_out"]),
            wall_s=float(header["wall_s"]),
        )

    async def read(self, path: str) -> bytes:
        """The content of a file; relative paths start at the working directory.

        Raises:
            FileFailed: there is none, or it is not a regular file.
        """
        data = b""
        while True:
            _, chunk = await self.request("read", {"path": path, "offset": len(data)})
            data += chunk
            if len(chunk) < MAX_BODY_BYTES:
                return data

    async def write(self, path: str, data: bytes, mode: int | None = None) -> None:
        """Create or overwrite a file, folders included.

        Raises:
            FileFailed: it cannot be written there.
        """
        fields: dict[str, Any] = {"path": path} if mode is None else {"path": path, "mode": mode}
        for offset in range(0, max(1, len(data)), MAX_BODY_BYTES):
            await self.request("write", {**fields, "offset": offset}, data[offset : offset + MAX_BODY_BYTES])

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
