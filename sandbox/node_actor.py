"""What runs on each node of a cluster: starts sandboxes there by that machine's own runtimes, and ends them when the
fleet is not heard any more.

A plain class that `runtimes/ray.py` makes an actor of. It belongs to the process of the fleet: with that it ends, and
with it end its sandboxes. While it cannot tell whether the fleet still lives, its lease decides (`node_lease.py`).
"""

from __future__ import annotations

import asyncio
import importlib
import os
import platform
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rocknroll
from rocknroll.sandbox.errors import RuntimeUnavailable, SandboxError
from rocknroll.sandbox.node_lease import NodeLease
from rocknroll.sandbox.relay import Relay
from rocknroll.sandbox.runtimes.base import Instance, Runtime
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.sandbox.spec import SandboxSpec

ENDED_PATIENCE_S = 0.5
"""The news of an end may come a little later than the end of its socket."""
ORPHAN_TTL_S = 10.0
"""A container without a connection for so long ends by itself, should this process be killed."""
DOCKER = "rocknroll.sandbox.runtimes.docker"
"""Imported in a thread, on first use: its library takes seconds on a busy machine, and pings must be answered."""


@dataclass
class _Kept:
    """One sandbox of this node."""

    starting: asyncio.Task[Instance] | None = None
    instance: Instance | None = None
    key: str = ""
    ended: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class NodeActor:
    """One per node and fleet; `host` is the address to listen on. What can fail answers `{"error": the error}`."""

    def __init__(self, host: str, ttl_s: float) -> None:
        self._host = host
        self._lease = NodeLease(time.monotonic() + ttl_s)
        self._relay = Relay(self._in_force)
        self._process = ProcessRuntime()
        self._docker: Runtime | None = None
        self._kept: dict[str, _Kept] = {}
        self._guard: asyncio.Task[None] | None = None

    async def open(self) -> dict[str, Any]:
        """Begin; says what this node is and where it is reached."""
        host, port = await self._relay.listen(self._host)
        self._guard = asyncio.create_task(self._watch_lease())
        return {
            "pid": os.getpid(),
            "versions": versions(),
            "host": host,
            "port": port,
            "tether": self._relay.tether,
            "cores": len(os.sched_getaffinity(0)),
            **await self.look(),
        }

    async def look(self) -> dict[str, Any]:
        """Clock (seconds, this node's own), load, and whether the lease is in force."""
        load = os.getloadavg()[0] / len(os.sched_getaffinity(0))
        return {"clock_s": time.monotonic(), "load": load, "in_force": self._in_force()}

    async def renew(self, deadline_s: float) -> dict[str, Any]:
        """Extend the lease to this time of this node's clock; answers as `look`."""
        self._lease.renew(deadline_s, time.monotonic())
        return await self.look()

    async def images(self) -> frozenset[str]:
        """The Docker images of this machine, by every name they have; none where no daemon answers."""
        await asyncio.to_thread(importlib.import_module, DOCKER)
        from rocknroll.sandbox.runtimes.docker_daemon import Daemon
        from rocknroll.sandbox.runtimes.docker_image import all_names

        daemon = Daemon()
        try:
            return await daemon.call(all_names)
        except RuntimeUnavailable:
            return frozenset()
        finally:
            await asyncio.to_thread(daemon.close)

    async def isolation(self) -> dict[str, Any]:
        """What separates process sandboxes here."""
        try:
            return {"isolation": await self._process.isolation()}
        except SandboxError as error:
            return {"error": error}

    async def start(self, spec_json: str, instance_id: str, floor: int) -> dict[str, Any]:
        """Start a sandbox; says how its agent is reached."""
        kept = self._kept[instance_id] = _Kept()
        try:
            spec = SandboxSpec.model_validate_json(spec_json)
            self._check_paths(spec)
            if not self._in_force():
                raise RuntimeUnavailable("this node has not heard of the fleet for too long and takes no sandboxes")
            runtime = await self._runtime(spec)
            kept.starting = asyncio.create_task(runtime.start(spec, instance_id, floor))
            instance = kept.instance = await kept.starting
        except SandboxError as error:
            del self._kept[instance_id]
            return {"error": error}
        except asyncio.CancelledError:
            # Killed while it started: the runtime has left nothing of it.
            self._kept.pop(instance_id, None)
            return {"error": RuntimeUnavailable("the start was called off")}
        instance.on_exit(lambda why: None if kept.ended.done() else kept.ended.set_result(str(why)))
        assert isinstance(instance.way, Path)
        kept.key = self._relay.admit(instance.way)
        return {"pid": instance.pid, "secret": instance.secret, "python": instance.python, "key": kept.key}

    async def kill(self, instance_id: str) -> None:
        """End a sandbox, or its start; returns when nothing is left of it. Idempotent."""
        kept = self._kept.get(instance_id)
        if kept is None:
            return
        if kept.starting is not None and not kept.starting.done():
            kept.starting.cancel()
            await asyncio.wait([kept.starting])
        if kept.instance is not None:
            self._relay.dismiss(kept.key)
            await kept.instance.kill()
        self._kept.pop(instance_id, None)

    async def ended(self, instance_id: str) -> str:
        """How a sandbox ended; empty while it runs, as far as is known."""
        if not self._in_force():
            return "its node had not heard of the fleet for too long and ended it"
        kept = self._kept.get(instance_id)
        if kept is None:
            return "its node does not know it"
        await asyncio.wait([kept.ended], timeout=ENDED_PATIENCE_S)
        return kept.ended.result() if kept.ended.done() else ""

    async def autopsy(self, instance_id: str) -> str:
        """See `base.Instance.autopsy`."""
        kept = self._kept.get(instance_id)
        return await kept.instance.autopsy() if kept is not None and kept.instance is not None else ""

    async def output_tail(self, instance_id: str) -> str:
        """See `base.Instance.output_tail`."""
        kept = self._kept.get(instance_id)
        return await kept.instance.output_tail() if kept is not None and kept.instance is not None else ""

    async def close(self) -> None:
        """End everything; returns when nothing is left. Idempotent."""
        if self._guard is not None and self._guard is not asyncio.current_task():
            self._guard.cancel()
        self._relay.close()
        for kept in self._kept.values():
            if kept.starting is not None:
                kept.starting.cancel()
        runtimes = [self._process, *([self._docker] if self._docker is not None else [])]
        await asyncio.gather(*(runtime.close() for runtime in runtimes))
        self._kept.clear()

    def _in_force(self) -> bool:
        return self._lease.in_force(time.monotonic())

    async def _watch_lease(self) -> None:
        while self._in_force():
            await asyncio.sleep(max(0.0, self._lease.deadline_s - time.monotonic()))
        await self.close()

    async def _runtime(self, spec: SandboxSpec) -> Runtime:
        if not spec.image:
            return self._process
        await asyncio.to_thread(importlib.import_module, DOCKER)
        if self._docker is None:
            from rocknroll.sandbox.runtimes.docker import DockerRuntime

            # An id of its own: nodes that share a machine must not sweep each other's containers.
            self._docker = DockerRuntime(f"node-{secrets.token_hex(6)}", orphan_ttl_s=ORPHAN_TTL_S)
        return self._docker

    def _check_paths(self, spec: SandboxSpec) -> None:
        """A folder that only the fleet's machine has would show up as a failure of the environment.

        Raises:
            RuntimeUnavailable: something that the specification names is not here.
        """
        python_path = spec.env.python_path if spec.env is not None else ()
        template = () if spec.template is None else (spec.template,)
        missing = [str(path) for path in (*spec.readable, *python_path, *template) if not path.exists()]
        if missing:
            raise RuntimeUnavailable(
                f"{platform.node()} has no {', '.join(missing)}, which sandboxes of {spec.name!r} read: put it on a"
                " folder that all nodes share, under the same path (data made here lies under $ROCKNROLL_CACHE)"
            )


def versions() -> Mapping[str, str]:
    """What must be the same on both sides."""
    import ray

    return {
        "rocknroll": rocknroll.__version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "ray": ray.__version__,
    }
