"""What both clients share: the service's address, reading answers, and what a lease knows of itself."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx

from rocknroll.sandbox.client.calls import Call, Event, Json, LeaseInfo, error_of
from rocknroll.sandbox.errors import LeaseLost, SandboxError, ServiceUnreachable, SpecInvalid
from rocknroll.sandbox.leased import HEARTBEATS_PER_TTL
from rocknroll.sandbox.spec import EnvSpec
from rocknroll.sandbox.state_folder import StateFolder, default_folder

ResultT = TypeVar("ResultT")
CONNECT_S = 5.0
FILE_SILENCE_S = 60.0
"""A transfer without a byte for so long is over."""
STREAM_SILENCE_S = 60.0
"""The stream of events has a sign of life more often than that."""
HEARTBEAT_RETRY_S = 0.5
"""After a heartbeat that did not get through, until the deadline."""
CHUNK_BYTES = 1 << 20
LIMITS = httpx.Limits(max_connections=None)
"""Waiting for a lease occupies a connection, and any number of callers may wait."""
BASE = "http://rock"
"""Host name in requests over a Unix socket, which has none."""


def default_owner() -> str:
    """`user@host:pid`."""
    return f"{os.environ.get('USER') or os.getuid()}@{socket.gethostname()}:{os.getpid()}"


class Address:
    """Where the service is, and the words for when it is not there."""

    def __init__(self, address: str | Path | None, token: str | None) -> None:
        given = StateFolder(default_folder()).service() if address is None else address
        self.url = str(given) if str(given).startswith(("http://", "https://")) else ""
        try:
            httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise SpecInvalid(f"the address {self.url} is no URL: {error}") from error
        self.uds = "" if self.url else str(given)
        self.base_url = self.url or BASE
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    @contextlib.contextmanager
    def reaching(self) -> Iterator[None]:
        """Say in our words that the service was not reached."""
        try:
            yield
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: httpx.TransportError) -> ServiceUnreachable:
        where = self.url or self.uds
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return ServiceUnreachable(
                f"no service answers at {where}: {error}. Start one with `rock up -d`, or name another with `--state`"
                " or `--url`."
            )
        return ServiceUnreachable(
            f"the service at {where} stopped answering ({type(error).__name__}: {error}); whether the request took"
            " effect is not known"
        )


def body_of(response: httpx.Response) -> Any:
    if not response.content:
        return None
    try:
        return response.json()
    except ValueError:
        return None


def answer_of(call: Call[ResultT], response: httpx.Response) -> ResultT:
    body = body_of(response)
    if not response.is_success:
        raise error_of(response.status_code, body)
    return call.read(body)


def event_of(line: str) -> Event | None:
    return Event(**json.loads(line.removeprefix("data: "))) if line.startswith("data: ") else None


def lease_wish(pool: str, sandbox_id: str | None, owner: str | None, ttl_s: float, bind_to_process: bool) -> Json:
    which = {"pool": pool} if sandbox_id is None else {"sandbox": sandbox_id}
    return {**which, "owner": owner or default_owner(), "ttl_s": ttl_s, "bind_to_process": bind_to_process}


class LeaseFacts:
    """What both kinds of lease know."""

    def __init__(self, info: LeaseInfo) -> None:
        self._info = info
        self._over = ""
        self._unheard = False
        """Over only because no heartbeat got through: a manager that comes back gives it its full time again."""

    @property
    def id(self) -> str:
        """The sandbox."""
        return self._info.sandbox_id

    @property
    def token(self) -> int:
        return self._info.token

    @property
    def owner(self) -> str:
        return self._info.owner

    @property
    def python(self) -> tuple[str, ...]:
        """Command of the Python interpreter inside."""
        return self._info.python

    @property
    def env(self) -> EnvSpec | None:
        """The environment that was made in the sandbox before it became READY."""
        return self._info.env

    @property
    def deadline(self) -> float:
        """When it ends unless a heartbeat comes, in seconds since the epoch, as of the last one."""
        return self._info.deadline

    @property
    def lost(self) -> str:
        """Why this lease is over; empty while it holds as far as this client knows."""
        return self._over

    def _check(self) -> None:
        if self._over:
            raise LeaseLost(f"the lease with token {self.token} on {self.id} is over: {self._over}")

    def _pause_s(self) -> float:
        return self._info.ttl_s / HEARTBEATS_PER_TTL

    def _noted(self, error: SandboxError) -> float | None:
        """After a heartbeat that failed: seconds until the next try, or None when the lease is over."""
        if isinstance(error, ServiceUnreachable) and time.time() < self._info.deadline:
            return HEARTBEAT_RETRY_S
        if not self._over:
            self._unheard = isinstance(error, ServiceUnreachable)
            self._over = f"its deadline passed unheard: {error}" if self._unheard else str(error)
        return None

    def _released(self) -> None:
        """The service knows that it is over."""
        self._unheard, self._over = False, self._over or "released"
