"""The client that blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from rocknroll.sandbox.client import calls
from rocknroll.sandbox.client.blocking_lease import Lease
from rocknroll.sandbox.client.calls import Event, Json
from rocknroll.sandbox.client.shared import (
    STREAM_SILENCE_S,
    event_of,
    lease_wish,
)
from rocknroll.sandbox.client.wire import Wire


class Client:
    """The blocking client; safe to share between threads. Use as a context manager, or `close` it.

    Args:
        address: a socket's path or an http(s) URL; None is the socket of the default state folder.
        token: needed over TCP.

    Every method raises ServiceUnreachable when nobody answers, and the errors that the service answers with.
    """

    def __init__(self, address: str | Path | None = None, token: str | None = None) -> None:
        self._wire = Wire(address, token)

    def healthz(self) -> Json:
        return self._wire.send(calls.healthz())

    def pools(self) -> list[Json]:
        return self._wire.send(calls.pools())

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until every pool has the sandboxes that are wanted of it.

        Raises:
            FleetExhausted: one never will. LeaseTimeout: not in time.
        """
        self._wire.send(calls.wait_ready(timeout_s))

    def snapshot(self) -> list[Json]:
        """Every sandbox, as `rock ps` shows it."""
        return self._wire.send(calls.snapshot())

    def describe(self, sandbox_id: str) -> Json:
        """One sandbox with its specification, newest events and last output; ids may be shortened here and below.

        Raises:
            NotFound: there is none, or (AmbiguousId) more than one.
        """
        return self._wire.send(calls.describe(sandbox_id))

    def restart(self, sandbox_id: str) -> str:
        """A fresh instance, out of quarantine if need be; returns the whole id."""
        return self._wire.send(calls.restart(sandbox_id))

    def remove(self, sandbox_id: str) -> str:
        """End it and keep its place empty until a restart; returns the whole id. A lease on it is lost."""
        return self._wire.send(calls.remove(sandbox_id))

    def overview(self, events: int = 200) -> Json:
        """Pools, sandboxes with what they use, the newest events and figures: all that a dashboard shows, at once."""
        return self._wire.send(calls.overview(events))

    def commit(self, sandbox_id: str, tag: str) -> str:
        """Snapshot a Docker sandbox that has `writable_root` into an image; returns the image's id.

        Raises:
            SpecInvalid: there is nothing of it that an image could keep.
        """
        return self._wire.send(calls.commit(sandbox_id, tag))

    def scale(self, pool: str, size: int, ready: int | None = None) -> Json:
        """Another size; returns the pool."""
        return self._wire.send(calls.scale(pool, size, ready))

    def alerts(self) -> list[Json]:
        """The open ones, oldest first, then those that are over, newest first."""
        return self._wire.send(calls.alerts())

    def events(self, after: int = 0, limit: int = 1_000, newest: bool = False) -> list[Event]:
        """Events above `after`, oldest first; with `newest` the last `limit` of them all."""
        return self._wire.send(calls.events(after, limit, newest))

    def follow(self, after: int = 0) -> Iterator[Event]:
        """Events above `after`, then those that happen, until the service ends."""
        stream = self._wire.stream("GET", "/v1/events/stream", STREAM_SILENCE_S, params={"after": after})
        with stream as response, self._wire.address.reaching():
            for line in response.iter_lines():
                if (event := event_of(line)) is not None:
                    yield event

    def metrics(self) -> str:
        """Prometheus' text format."""
        with self._wire.stream("GET", calls.metrics(), calls.QUICK_S) as response, self._wire.address.reaching():
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
        info = self._wire.send(calls.lease(lease_wish(pool, sandbox_id, owner, ttl_s, bind_to_process), timeout_s))
        return Lease(self._wire, info, heartbeats)

    def held(self, token: int, heartbeats: bool = False) -> Lease:
        """The lease with this token, taken by whomever.

        Raises:
            LeaseLost: it is over.
        """
        return Lease(self._wire, self._wire.send(calls.look(token)), heartbeats)

    def close(self) -> None:
        self._wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
