"""The client that blocks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from rocknroll.sandbox.agent.output import DEFAULT_OUTPUT_BYTES
from rocknroll.sandbox.client import calls
from rocknroll.sandbox.client.calls import Call, Event, Json, LeaseInfo, error_of
from rocknroll.sandbox.client.shared import (
    CHUNK_BYTES,
    CONNECT_S,
    FILE_SILENCE_S,
    LIMITS,
    STREAM_SILENCE_S,
    Address,
    LeaseFacts,
    ResultT,
    answer_of,
    body_of,
    event_of,
    lease_wish,
)
from rocknroll.sandbox.errors import LeaseLost, SandboxError
from rocknroll.sandbox.results import ExecResult, FileStat


class Client:
    """The blocking client; safe to share between threads. Use as a context manager, or `close` it.

    Args:
        address: a socket's path or an http(s) URL; None is the socket of the default state folder.
        token: needed over TCP.

    Every method raises ServiceUnreachable when nobody answers, and the errors that the service answers with.
    """

    def __init__(self, address: str | Path | None = None, token: str | None = None) -> None:
        self._address = Address(address, token)
        self._http = httpx.Client(
            base_url=self._address.base_url,
            headers=self._address.headers,
            transport=httpx.HTTPTransport(uds=self._address.uds, limits=LIMITS) if self._address.uds else None,
            limits=LIMITS,
            trust_env=not self._address.uds,
        )

    def healthz(self) -> Json:
        return self._send(calls.healthz())

    def pools(self) -> list[Json]:
        return self._send(calls.pools())

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until every pool has the sandboxes that are wanted of it.

        Raises:
            FleetExhausted: one never will. LeaseTimeout: not in time.
        """
        self._send(calls.wait_ready(timeout_s))

    def snapshot(self) -> list[Json]:
        """Every sandbox, as `rock ps` shows it."""
        return self._send(calls.snapshot())

    def describe(self, sandbox_id: str) -> Json:
        """One sandbox with its specification, newest events and last output; ids may be shortened here and below.

        Raises:
            NotFound: there is none, or (AmbiguousId) more than one.
        """
        return self._send(calls.describe(sandbox_id))

    def restart(self, sandbox_id: str) -> str:
        """A fresh instance, out of quarantine if need be; returns the whole id."""
        return self._send(calls.restart(sandbox_id))

    def commit(self, sandbox_id: str, tag: str) -> str:
        """Snapshot a Docker sandbox that has `writable_root` into an image; returns the image's id.

        Raises:
            SpecInvalid: there is nothing of it that an image could keep.
        """
        return self._send(calls.commit(sandbox_id, tag))

    def scale(self, pool: str, size: int, ready: int | None = None) -> Json:
        """Another size; returns the pool."""
        return self._send(calls.scale(pool, size, ready))

    def events(self, after: int = 0, limit: int = 1_000, newest: bool = False) -> list[Event]:
        """Events above `after`, oldest first; with `newest` the last `limit` of them all."""
        return self._send(calls.events(after, limit, newest))

    def follow(self, after: int = 0) -> Iterator[Event]:
        """Events above `after`, then those that happen, until the service ends."""
        stream = self._stream("GET", "/v1/events/stream", STREAM_SILENCE_S, params={"after": after})
        with stream as response, self._address.reaching():
            for line in response.iter_lines():
                if (event := event_of(line)) is not None:
                    yield event

    def metrics(self) -> str:
        """Prometheus' text format."""
        with self._stream("GET", calls.metrics(), calls.QUICK_S) as response, self._address.reaching():
            return response.read().decode()

    def lease(
        self,
        pool: str = "default",
        owner: str | None = None,
        ttl_s: float = 60.0,
        timeout_s: float = 60.0,
        heartbeats: bool = True,
        sandbox_id: str | None = None,
        bind_to_process: bool = False,
    ) -> Lease:
        """Wait for a READY sandbox of a pool, or take the one of this id at once.

        Args:
            heartbeats: renew the lease from a thread of its own until it is released.
            bind_to_process: end the lease when this process ends (Unix socket only).

        Raises:
            LeaseTimeout, FleetExhausted: see `Fleet.lease`.
        """
        info = self._send(calls.lease(lease_wish(pool, sandbox_id, owner, ttl_s, bind_to_process), timeout_s))
        return Lease(self, info, heartbeats)

    def held(self, token: int, heartbeats: bool = False) -> Lease:
        """The lease with this token, taken by whomever.

        Raises:
            LeaseLost: it is over.
        """
        return Lease(self, self._send(calls.look(token)), heartbeats)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, call: Call[ResultT]) -> ResultT:
        with self._address.reaching():
            response = self._http.request(
                call.method,
                call.path,
                params=dict(call.params),
                json=call.json,
                timeout=httpx.Timeout(call.timeout_s, connect=CONNECT_S),
            )
        return answer_of(call, response)

    @contextlib.contextmanager
    def _stream(self, method: str, path: str, silence_s: float, **more: Any) -> Iterator[httpx.Response]:
        with contextlib.ExitStack() as stack:
            timeout = httpx.Timeout(silence_s, connect=CONNECT_S)
            with self._address.reaching():
                response = stack.enter_context(self._http.stream(method, path, timeout=timeout, **more))
                if not response.is_success:
                    response.read()
                    raise error_of(response.status_code, body_of(response))
            yield response


class Lease(LeaseFacts):
    """A sandbox in hand. As a context manager it is released at the end, recycled after an exception."""

    def __init__(self, client: Client, info: LeaseInfo, heartbeats: bool) -> None:
        super().__init__(info)
        self._client = client
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
        return self._client._send(call)

    def read(self, path: str) -> bytes:
        """The content of a file; relative paths start at the working directory."""
        return b"".join(self.read_chunks(path))

    def read_chunks(self, path: str) -> Iterator[bytes]:
        """The content of a file, piece by piece."""
        self._check()
        stream = self._client._stream("GET", calls.files(self.token), FILE_SILENCE_S, params={"path": path})
        with stream as response, self._client._address.reaching():
            yield from response.iter_bytes(CHUNK_BYTES)

    def write(self, path: str, data: bytes | Iterable[bytes], mode: int | None = None) -> None:
        """Create or overwrite a file, folders included."""
        self._check()
        params = {"path": path} if mode is None else {"path": path, "mode": mode}
        with self._client._stream("PUT", calls.files(self.token), FILE_SILENCE_S, params=params, content=data):
            pass

    def stat(self, path: str) -> FileStat:
        self._check()
        return self._client._send(calls.stat(self.token, path))

    def heartbeat(self, ttl_s: float | None = None) -> None:
        """Move the deadline to a full time to live from now, optionally another one.

        Raises:
            LeaseLost: it is over.
        """
        self._check()
        self._info = self._client._send(calls.heartbeat(self.token, ttl_s))

    def release(self, recycle: bool = False) -> None:
        """Give it back. Idempotent, also after a loss."""
        if self._over:
            return
        self._over = "released"
        self._done.set()
        with contextlib.suppress(LeaseLost):
            self._client._send(calls.release(self.token, recycle))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release(recycle=error is not None)

    def _beat(self) -> None:
        pause_s: float | None = self._pause_s()
        while pause_s is not None and not self._done.wait(pause_s):
            try:
                self.heartbeat()
                pause_s = self._pause_s()
            except SandboxError as error:
                pause_s = self._noted(error)
