"""A site: the pools of one fleet file, over one record and the runtimes they need, under one manager.

Opens in an order that loses nothing: lock, record, adoption of what an earlier manager left, removal
of what nobody knows, then the pools. Events reach listeners as they are written.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rocknroll.sandbox.alerts.watch import FleetWatch
from rocknroll.sandbox.cluster import choose_cluster
from rocknroll.sandbox.errors import (
    AmbiguousId,
    FleetExhausted,
    LeaseLost,
    NotFound,
    SandboxLost,
    SpecInvalid,
    StoreFailed,
)
from rocknroll.sandbox.fleet import STARTS_PER_CORE, Fleet
from rocknroll.sandbox.fleetfile import FleetFile, PoolConfig
from rocknroll.sandbox.leased import LeasedSandbox
from rocknroll.sandbox.lifecycle import State
from rocknroll.sandbox.nodes import cluster_runtime
from rocknroll.sandbox.overview import event_json, pool_state, sandboxes_and_figures
from rocknroll.sandbox.runtimes.base import Runtime
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.sandbox.state_folder import StateFolder
from rocknroll.sandbox.store import EventRow, LeaseRow, Store
from rocknroll.sandbox.usage import Usage

DURABLE_S = 60.0
"""How long sandboxes outlive a killed manager, for the next one to take over."""
HIDDEN = "(hidden)"
"""In place of variables' values, which may be secret."""
UP = frozenset({State.READY, State.LEASED, State.SUSPECT})


def _process(fleet_id: str, folder: Path) -> Runtime:
    return ProcessRuntime(folder=folder, fleet_id=fleet_id, durable_s=DURABLE_S)


def _docker(fleet_id: str, folder: Path) -> Runtime:
    from rocknroll.sandbox.runtimes.docker import DockerRuntime  # its library takes a moment to import

    return DockerRuntime(fleet_id, folder, orphan_ttl_s=DURABLE_S)


RUNTIMES: Mapping[str, Callable[[str, Path], Runtime]] = {"process": _process, "docker": _docker}
"""Makes a runtime from the fleet's id and the folder for its files."""


class _ToldStore(Store):
    """A record that says when an event was written."""

    def __init__(self, path: Path) -> None:
        self._told: asyncio.Future[None] | None = None
        super().__init__(path)

    def add_event(self, sandbox_id: str, kind: str, detail: str) -> None:
        super().add_event(sandbox_id, kind, detail)
        self.tell()

    def tell(self) -> None:
        told, self._told = self._told, None
        if told is not None:
            told.set_result(None)

    async def changed(self) -> None:
        """Return after the next event."""
        if self._told is None:
            self._told = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._told)


class Site:
    """Use as an async context manager; on leaving it everything is ended and nothing is left but the record."""

    def __init__(self, fleet: FleetFile, state: StateFolder) -> None:
        self.config, self.state = fleet, state
        self.fleets: dict[str, Fleet] = {}
        self.closing = asyncio.Event()
        """Set when the site begins to close, for those who would otherwise wait for ever."""
        self.began = time.time()
        self._runtimes: dict[str, Runtime] = {}
        self._starts: int | None = None
        """At once, unless a pool says; None leaves it to the fleet, which knows this machine's cores."""
        self._store: _ToldStore
        self._watch: FleetWatch
        self._stack = contextlib.AsyncExitStack()
        self._usage = Usage()

    async def __aenter__(self) -> Self:
        """Take the folder and bring the pools up in the background; returns before they are READY.

        Raises:
            StateLocked: another manager works on the folder. StoreFailed: the folder cannot be used.
            RuntimeUnavailable: what an earlier manager left cannot be looked for; or the cluster cannot be used.
        """
        self.state.prepare()
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self.state.locked())
            self._write_config()
            self._store = _ToldStore(self.state.store)
            stack.callback(self._store.close)
            await self._open_runtimes(stack)
            for name, pool in self.config.pools.items():
                self.fleets[name] = self._fleet(pool)
            folders = {"the state folder": self.state.path}
            self._watch = FleetWatch(self.config.alerts, self.fleets, folders, self._store)
            await self._adopt()
            # Closed last, when the fleets are: their leases end with them.
            for fleet in self.fleets.values():
                await stack.enter_async_context(fleet)
            await stack.enter_async_context(self._watch)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close_soon()
        await self._stack.aclose()

    def close_soon(self) -> None:
        """Tell those who wait for something that it will not come any more."""
        self.closing.set()
        self._store.tell()

    async def lease(
        self, pool: str, owner: str, ttl_s: float = 60.0, timeout_s: float | None = None, owner_pid: int | None = None
    ) -> LeasedSandbox:
        """A READY sandbox of a pool for a holder outside this process, which sends heartbeats itself.

        Raises:
            NotFound: there is no such pool. What `Fleet.lease` raises.
        """
        return await self._pool(pool).lease(owner, ttl_s, timeout_s, heartbeats=False, owner_pid=owner_pid)

    async def lease_one(
        self, sandbox_id: str, owner: str, ttl_s: float = 60.0, owner_pid: int | None = None
    ) -> LeasedSandbox:
        """This very sandbox, at once.

        Raises:
            NotFound: there is none. LeaseTimeout: it is not READY; the text says what it is.
        """
        fleet, row = self._find(sandbox_id)
        return await fleet.lease_one(row["id"], owner, ttl_s, owner_pid)

    def held(self, token: int) -> LeasedSandbox:
        """What the lease with this token entitles to.

        Raises:
            LeaseLost: it is over, or never was.
        """
        row = self.lease_row(token)
        for fleet in self.fleets.values():
            if any(member["id"] == row.sandbox_id for member in fleet.snapshot()):
                return fleet.held(token)
        raise LeaseLost(f"the lease with token {token} is over: {row.outcome}")

    def snapshot(self) -> list[dict[str, Any]]:
        """Every sandbox of every pool, as `rock ps` shows it. Looking renews nothing."""
        return [row for fleet in self.fleets.values() for row in fleet.snapshot()]

    async def describe(self, sandbox_id: str) -> dict[str, Any]:
        """One sandbox: its row, its specification, its newest events, and what it printed last.

        Raises:
            NotFound: there is none.
        """
        fleet, row = self._find(sandbox_id)
        instance = fleet.instance(row["id"])
        spec = fleet.spec.model_dump(mode="json")
        spec["variables"] = dict.fromkeys(spec["variables"], HIDDEN)
        return {
            **row,
            "spec": spec,
            "output": "" if instance is None else await instance.output_tail(),
            "events": [event_json(event) for event in self._store.history(row["id"])],
        }

    async def overview(self, events: int) -> dict[str, Any]:
        """All that a dashboard shows in one refresh: pools, sandboxes and what they use, events, alerts,
        figures."""
        return {
            "at": time.time(),
            "began": self.began,
            "pools": self.pools(),
            "events": [event_json(event) for event in self.newest_events(events)],
            "alerts": self.alerts(),
            **await sandboxes_and_figures(self.fleets.values(), self._usage),
        }

    def pools(self) -> list[dict[str, Any]]:
        """Every pool: what is wanted, and how many sandboxes are in which state."""
        return [
            {
                "name": name,
                "runtime": self.config.pools[name].runtime,
                "image": self.config.pools[name].image or None,
                "spec": fleet.spec.fingerprint,
                "size": self.config.pools[name].size,
                "ready": self.config.pools[name].ready,
                **pool_state(fleet),
            }
            for name, fleet in self.fleets.items()
        ]

    def alerts(self) -> list[dict[str, Any]]:
        """Alerts as `Alert.to_json` has them: the open ones, oldest first, then those that are over, newest first."""
        return [alert.to_json() for alert in self._watch.alerts()]

    def alerts_raised(self) -> dict[str, int]:
        """Alerts since the manager began, by rule."""
        return dict(self._watch.raised)

    def metrics(self) -> dict[str, dict[str, float]]:
        """`Fleet.metrics` by pool."""
        return {name: fleet.metrics() for name, fleet in self.fleets.items()}

    def events(self, after: int = 0, limit: int = 1_000) -> list[EventRow]:
        """What happened in all pools, oldest first."""
        return self._store.events(after, limit)

    def newest_events(self, limit: int) -> list[EventRow]:
        """The newest events of all pools, oldest first."""
        return self._store.history(limit=limit)

    def lease_row(self, token: int) -> LeaseRow:
        """What is on record of a lease, over or not.

        Raises:
            LeaseLost: it was never given.
        """
        row = self._store.lease(token)
        if row is None:
            raise LeaseLost(f"the lease with token {token} was never given")
        return row

    async def changed(self) -> None:
        """Return after the next event, or when the site closes. No event is missed between a look and this."""
        if not self.closing.is_set():
            await self._store.changed()

    async def wait_ready(self) -> None:
        """Return when every pool has all the READY (or leased) sandboxes that are wanted of it.

        Raises:
            FleetExhausted: one of them never will.
        """
        while not self.closing.is_set():
            pools = self.pools()
            for pool in pools:
                if pool["exhausted"]:
                    raise FleetExhausted(f"no sandbox of pool {pool['name']!r} can start: {pool['exhausted']}")
            if all(is_up(pool) for pool in pools):
                return
            await self.changed()

    def restart(self, sandbox_id: str) -> str:
        """An operator's wish: a fresh instance, out of quarantine if need be. Returns the sandbox's whole id.

        Raises:
            NotFound: there is none.
        """
        fleet, row = self._find(sandbox_id)
        fleet.restart(row["id"])
        return str(row["id"])

    def remove(self, sandbox_id: str) -> str:
        """An operator's wish: end it, and keep its place empty until a restart. Returns the sandbox's whole id.

        Raises:
            NotFound: there is none.
        """
        fleet, row = self._find(sandbox_id)
        fleet.remove(row["id"])
        return str(row["id"])

    async def commit(self, sandbox_id: str, tag: str) -> str:
        """Snapshot a sandbox into a Docker image, for pools that start warm; returns the image's id.

        Raises:
            NotFound: there is no such sandbox. SandboxLost: nothing runs there now.
            SpecInvalid: its runtime has no images, or its root is not writable.
        """
        fleet, row = self._find(sandbox_id)
        commit = getattr(fleet.runtime, "commit", None)
        if commit is None:
            raise SpecInvalid(f"{row['id']} is a sandbox of the {fleet.runtime.name} runtime, which has no images")
        instance = fleet.instance(row["id"])
        if instance is None:
            raise SandboxLost(f"{row['id']} is {row['state']}: there is nothing to keep")
        return str(await commit(instance, tag))

    def scale(self, pool: str, size: int, ready: int | None = None) -> None:
        """Another size; sandboxes that are too many go when nobody holds them.

        Raises:
            NotFound: there is no such pool. SpecInvalid: it cannot have this size.
        """
        self._pool(pool).scale(size, ready)
        changed = self.config.pools[pool].model_copy(update={"size": size, "ready": ready})
        self.config = self.config.model_copy(update={"pools": {**self.config.pools, pool: changed}})
        self._write_config()

    async def _open_runtimes(self, stack: contextlib.AsyncExitStack) -> None:
        """This machine's own, or one for all pools on the nodes of a cluster."""
        kinds = sorted({pool.runtime for pool in self.config.pools.values()})
        choice = choose_cluster(self.config.cluster.address)
        if choice.address:
            nodes = cluster_runtime(choice)
            stack.push_async_callback(nodes.close)
            await nodes.open(sum(pool.size for pool in self.config.pools.values()))
            self._starts = STARTS_PER_CORE * nodes.cores
            self._runtimes = dict.fromkeys(kinds, nodes)
            return
        for kind in kinds:
            runtime = self._runtimes[kind] = RUNTIMES[kind](self._store.fleet_id, self.state.run)
            stack.push_async_callback(runtime.close)

    def _fleet(self, pool: PoolConfig) -> Fleet:
        runtime = self._runtimes[pool.runtime]
        starts = pool.max_starting or self._starts
        return Fleet(pool.spec, pool.size, runtime, self._store, starts, owns_runtime=False, ready=pool.ready)

    async def _adopt(self) -> None:
        """Go on with what an earlier manager left; end the leases and instances of what is in no pool any more."""
        kept = {instance for fleet in self.fleets.values() for instance in await fleet.adopt()}
        for runtime in set(self._runtimes.values()):
            await runtime.sweep(kept)
        known = {row["id"] for row in self.snapshot()}
        for lease in self._store.open_leases():
            if lease.sandbox_id not in known:
                self._store.end_lease(lease.token, "its pool is gone")
                self._store.add_event(lease.sandbox_id, "lease_lost", lease.owner)

    def _pool(self, name: str) -> Fleet:
        if name not in self.fleets:
            raise NotFound(f"there is no pool {name!r}; there are: {', '.join(self.fleets)}")
        return self.fleets[name]

    def _find(self, sandbox_id: str) -> tuple[Fleet, dict[str, Any]]:
        """The sandbox of this id, or the only one whose id begins like this."""
        rows = self.snapshot()
        exact = [row for row in rows if row["id"] == sandbox_id]
        matches = exact or [row for row in rows if sandbox_id and row["id"].startswith(sandbox_id)]
        names = ", ".join(row["id"] for row in (matches or rows))
        if len(matches) > 1:
            raise AmbiguousId(f"{sandbox_id!r} begins more than one id: {names}")
        if not matches:
            raise NotFound(f"there is no sandbox {sandbox_id!r}; there are: {names}")
        return self.fleets[matches[0]["pool"]], matches[0]

    def _write_config(self) -> None:
        """For `rock down` after a crash, and to look at."""
        try:
            self.state.fleet.write_text(json.dumps(self.config.model_dump(mode="json")), encoding="utf-8")
            self.state.fleet.chmod(0o600)
        except OSError as error:
            raise StoreFailed(f"cannot write {self.state.fleet}: {error.strerror}") from error


def is_up(pool: Mapping[str, Any]) -> bool:
    """Whether a pool (a row of `Site.pools`) has all the sandboxes it is to have."""
    states: Mapping[str, int] = pool["states"]
    size: int = pool["size"]
    ready: int | None = pool["ready"]
    if ready is None:
        return sum(states[state] for state in UP) >= size
    return states[State.READY] >= min(ready, size - states[State.LEASED] - states[State.SUSPECT])
