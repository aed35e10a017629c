"""A lease of the client that blocks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rocknroll.sandbox.agent.output import DEFAULT_OUTPUT_BYTES
from rocknroll.sandbox.client import calls
from rocknroll.sandbox.client.blocking_work import RunningCommand, Session
from rocknroll.sandbox.client.calls import Json, LeaseInfo
from rocknroll.sandbox.client.folders import packing, unpacking
from rocknroll.sandbox.client.shared import (
    CHUNK_BYTES,
    FILE_SILENCE_S,
    LeaseFacts,
)
from rocknroll.sandbox.client.stream import env_reply, env_request
from rocknroll.sandbox.client.wire import Wire
from rocknroll.sandbox.errors import LeaseLost, SandboxError, ServiceUnreachable
from rocknroll.sandbox.leased import FILE_TIMEOUT_S, REPLY_GRACE_S
from rocknroll.sandbox.results import ExecResult, FileStat
from rocknroll.sandbox.transfer import FOLDER_BYTES, FOLDER_ENTRIES


class Lease(LeaseFacts):
    """A sandbox in hand. As a context manager it is released at the end, recycled after an exception."""

    def __init__(self, wire: Wire, info: LeaseInfo, heartbeats: bool) -> None:
        super().__init__(info)
        self._wire = wire
        self._done = threading.Event()
        if heartbeats:
            threading.Thread(target=self._beat, name=f"heartbeats of lease {info.token}", daemon=True).start()

    def exec(
        self,
        command: str | Sequence[str],
        timeout_s: float = 60.0,
        stdin: bytes = b"",
        cwd: str = ".",
        variables: Mapping[str, str] | None = None,
        output_bytes: int = DEFAULT_OUTPUT_BYTES,
    ) -> ExecResult:
        """Run a command (a string goes to `sh -c`); see `LeasedSandbox.exec`."""
        self._check()
        call = calls.execute(self.token, command, timeout_s, stdin, cwd, variables, output_bytes)
        return self._wire.send(call)

    def stream(
        self,
        command: str | Sequence[str],
        timeout_s: float = 60.0,
        cwd: str = ".",
        variables: Mapping[str, str] | None = None,
    ) -> RunningCommand:
        """A command whose output is read, and whose input is written, while it runs: `with lease.stream(…) as it`."""
        self._check()
        return RunningCommand(self._wire, self.token, calls.stream_wish(command, timeout_s, cwd, variables))

    def session(self, name: str = "", cwd: str = ".", variables: Mapping[str, str] | None = None) -> Session:
        """Open a persistent shell; see `LeasedSandbox.session`."""
        self._check()
        opened = self._wire.send(calls.open_session(self.token, name, cwd, variables))
        return Session(self._wire, self.token, opened["name"], opened["shell"])

    def read(self, path: str) -> bytes:
        """The content of a file; relative paths start at the working directory."""
        return b"".join(self.read_chunks(path))

    def read_chunks(self, path: str) -> Iterator[bytes]:
        """The content of a file, piece by piece."""
        self._check()
        stream = self._wire.stream("GET", calls.files(self.token), FILE_SILENCE_S, params={"path": path})
        with stream as response, self._wire.address.reaching():
            yield from response.iter_bytes(CHUNK_BYTES)

    def write(self, path: str, data: bytes | Iterable[bytes], mode: int | None = None) -> None:
        """Create or overwrite a file, folders included."""
        self._check()
        params = {"path": path} if mode is None else {"path": path, "mode": mode}
        self._put(calls.files(self.token), params, data)

    def request(
        self, op: str, header: Mapping[str, Any], body: bytes = b"", timeout_s: float = FILE_TIMEOUT_S
    ) -> tuple[Json, bytes]:
        """A request to an environment in the sandbox; only `env.*`. What `RemoteEnv` needs of a sandbox.

        Raises:
            EnvError, EnvHung, EnvCrashed: the environment failed. LeaseLost, SandboxLost: the sandbox is gone.
        """
        self._check()
        framed, silence_s = env_request(op, header, body, timeout_s), timeout_s + 2 * REPLY_GRACE_S
        sending = self._wire.stream("POST", calls.env(self.token), silence_s, content=framed)
        with sending as response, self._wire.address.reaching():
            return env_reply(response.read())

    def upload(self, host_path: Path | str, path: str) -> None:
        """Copy the content of a folder of this machine into one of the sandbox, which is made if need be.

        Raises:
            FileFailed: something cannot be read here or written there. PathEscapes: a link in it leads out of it.
        """
        self._check()
        with packing(Path(host_path)) as pieces:
            self._put(calls.archive(self.token), {"path": path}, pieces)

    def download(
        self,
        path: str,
        host_path: Path | str,
        limit_bytes: int = FOLDER_BYTES,
        limit_entries: int = FOLDER_ENTRIES,
    ) -> None:
        """Copy the content of a folder of the sandbox into one of this machine, which is made if need be.

        Raises:
            FileFailed: something cannot be read there or written here. PathEscapes: a name or a link leads out of the
                folder. QuotaExceeded: it is larger than allowed.
        """
        self._check()
        stream = self._wire.stream("GET", calls.archive(self.token), FILE_SILENCE_S, params={"path": path})
        filling = unpacking(Path(host_path), limit_bytes, limit_entries)
        with stream as response, filling as feed, self._wire.address.reaching():
            for piece in response.iter_bytes(CHUNK_BYTES):
                feed(piece)

    def stat(self, path: str) -> FileStat:
        self._check()
        return self._wire.send(calls.stat(self.token, path))

    def heartbeat(self, ttl_s: float | None = None) -> None:
        """Move the deadline to a full time to live from now, optionally another one.

        Raises:
            LeaseLost: it is over.
        """
        self._check()
        self._info = self._wire.send(calls.heartbeat(self.token, ttl_s))

    def release(self, recycle: bool = False) -> None:
        """Give it back. Idempotent, also after a loss; heartbeats end even if it fails.

        Raises:
            ServiceUnreachable: whether it took effect is not known; trying again does no harm.
        """
        if self._over and not self._unheard:
            return
        self._done.set()
        with contextlib.suppress(LeaseLost):
            self._wire.send(calls.release(self.token, recycle))
        self._released()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # What went wrong inside says more than a service that is away, and the lease ends by its time to live.
        with contextlib.suppress(*([] if error is None else [ServiceUnreachable])):
            self.release(recycle=error is not None)

    def _beat(self) -> None:
        pause_s: float | None = self._pause_s()
        while pause_s is not None and not self._done.wait(pause_s):
            try:
                self.heartbeat()
                pause_s = self._pause_s()
            except SandboxError as error:
                pause_s = self._noted(error)

    def _put(self, path: str, params: Mapping[str, Any], content: bytes | Iterable[bytes]) -> None:
        with self._wire.stream("PUT", path, FILE_SILENCE_S, params=params, content=content):
            pass
