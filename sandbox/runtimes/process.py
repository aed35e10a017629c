"""Sandboxes as processes of this machine, without a daemon: the embedded default.

Isolation is what the kernel grants: own namespaces, else bubblewrap (which some distributions allow
where they refuse us), else a plain process group; limits are control groups, else rlimits. `isolation()`
says which and why. Sandboxes of one kind are forked from one `forkserver.py`. They die with it when
this process goes, unless `durable_s` leaves a successor the time to adopt them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from rocknroll.sandbox.channel import check_socket_path
from rocknroll.sandbox.errors import RuntimeUnavailable, SandboxLost, SpecInvalid, StartFailed
from rocknroll.sandbox.nodes import this_node
from rocknroll.sandbox.runtimes import job
from rocknroll.sandbox.runtimes.base import Isolation
from rocknroll.sandbox.runtimes.forklink import End, ForkLink, clean, new_secret
from rocknroll.sandbox.runtimes.grants import Grants, Level, Limits, bubblewrap_works
from rocknroll.sandbox.spec import SandboxSpec

KILL_PATIENCE_S = 2.0
"""A sandbox that is not gone by then after a polite end gets the signal that nothing survives."""
AUTOPSY_PATIENCE_S = 2.0
"""Its socket may end a moment before the news of its process arrives."""
PROBE_TIMEOUT_S = 10.0
OUTPUT_TAIL_BYTES = 4096


class ProcessInstance:
    """One sandbox, as the fleet sees it (see `base.Instance`)."""

    def __init__(self, link: ForkLink, folder: Path, instance_id: str, secret: str, fleet: str) -> None:
        self.node = this_node()
        self.socket_path = folder / "agent.sock"
        self.secret = secret
        self.python: tuple[str, ...] = (sys.executable,)
        self.pid = 0
        self.id = instance_id
        self._folder, self._link, self._fleet = folder, link, fleet
        self._gone: asyncio.Future[End] = asyncio.get_running_loop().create_future()

    @property
    def record(self) -> Mapping[str, Any]:
        server = str(self._link.folder)
        return {"runtime": "process", "fleet": self._fleet, "server": server, "instance": self.id, "pid": self.pid}

    def watch(self, pid: int) -> None:
        self.pid = pid
        self._link.watch(pid, lambda end: None if self._gone.done() else self._gone.set_result(end))

    @property
    def way(self) -> Path:
        return self.socket_path

    def on_exit(self, callback: Callable[[SandboxLost], None]) -> None:
        self._gone.add_done_callback(lambda gone: callback(SandboxLost(str(gone.result()))))

    async def kill(self) -> None:
        for hard in (False, True):
            if not self._gone.done() and not self._link.over:
                try:
                    await self._link.call("kill", KILL_PATIENCE_S, pid=self.pid, hard=hard)
                except StartFailed:
                    # It ended meanwhile, and a forkserver that is gone took it along, or is busy.
                    continue
                await asyncio.wait([self._gone], timeout=KILL_PATIENCE_S)
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def autopsy(self) -> str:
        await asyncio.wait([self._gone], timeout=AUTOPSY_PATIENCE_S)
        text = str(self._gone.result()) if self._gone.done() else "its process still runs"
        tail = self._output_tail()
        return f"{text}; last output:\n{tail}" if tail else text

    async def output_tail(self) -> str:
        return await asyncio.to_thread(self._output_tail)

    def _output_tail(self) -> str:
        try:
            with (self._folder / "log").open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - OUTPUT_TAIL_BYTES))
                return file.read().decode(errors="replace").strip()
        except OSError:
            return ""


class ProcessRuntime:
    """`level` and `limits` ask for one kind of isolation; None takes the best that the kernel grants.

    `durable_s`: when this process dies, its sandboxes live on for so long, for a runtime of the same `fleet_id` and
    `folder` to adopt. `close` ends them in any case, `detach` leaves them.
    """

    name = "process"

    def __init__(
        self,
        level: Level | None = None,
        folder: Path | None = None,
        fleet_id: str = "",
        durable_s: float = 0.0,
        limits: Limits | None = None,
    ) -> None:
        if durable_s and not fleet_id:
            raise SpecInvalid("durable sandboxes need a fleet_id, by which a successor finds them")
        self.node = this_node()
        self._level, self._limits, self._durable_s = level, limits, durable_s
        self._fleet = fleet_id or secrets.token_hex(8)
        # A hash, because the path of a socket has room for little.
        self._prefix = f"rock-{hashlib.sha256(self._fleet.encode()).hexdigest()[:8]}-"
        self._parent = (folder or Path(tempfile.gettempdir())).absolute()
        self._links: dict[str, asyncio.Task[ForkLink]] = {}
        self._inherited: dict[Path, asyncio.Task[ForkLink | None]] = {}
        self._grants: Grants | None = None
        self._bubblewrap = shutil.which("bwrap") or ""
        self._instances: dict[str, ProcessInstance] = {}
        self._count = 0

    async def isolation(self) -> Isolation:
        return (await self.grants()).isolation

    async def grants(self) -> Grants:
        """What was had here, in detail.

        Raises:
            RuntimeUnavailable: this machine cannot run sandboxes, or not of the level that was asked for.
        """
        if self._grants is None:
            await self._link(SandboxSpec())
        assert self._grants is not None
        return self._grants

    async def start(self, spec: SandboxSpec, instance_id: str, floor: int) -> ProcessInstance:
        job.check(spec)
        link = await self._link(spec)
        assert self._grants is not None
        self._count += 1
        folder = link.folder / str(self._count)
        instance = ProcessInstance(link, folder, instance_id, new_secret(), self._fleet)
        check_socket_path(instance.socket_path)
        group = f"{link.folder.name}.{folder.name}"
        request = job.build(
            spec, instance_id, folder, group, instance.secret, floor, self._grants, wrap=self._bubblewrap
        )
        spawning = asyncio.create_task(link.call("spawn", spec.start_timeout_s, **request))
        try:
            await asyncio.shield(spawning)
        except asyncio.CancelledError:
            await asyncio.shield(self._undo(spawning, instance))
            raise
        except StartFailed:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            raise
        self._watch(instance, int(spawning.result()["pid"]))
        return instance

    async def adopt(self, spec: SandboxSpec, record: Mapping[str, Any]) -> ProcessInstance | None:
        if record.get("runtime") != self.name or record.get("fleet") != self._fleet:
            return None
        known = self._instances.get(record["instance"])
        if known is not None:
            return known
        link = await self._inherit(Path(record["server"]))
        fact = link.adopted.get(record["instance"]) if link is not None else None
        if link is None or fact is None or fact["pid"] != record["pid"]:
            return None
        instance = self._take_over(link, fact)
        if fact["spec"] != spec.fingerprint:
            await instance.kill()
            return None
        return instance

    async def sweep(self, keep: Collection[str]) -> list[str]:
        """See `base.Runtime.sweep`; also removes what forkservers that are gone left in the file system.

        Raises:
            RuntimeUnavailable: another process of this fleet lives and holds its sandboxes.
        """
        links = await asyncio.gather(*self._links.values(), return_exceptions=True)
        own = {link.folder for link in links if isinstance(link, ForkLink)}
        for folder in sorted(self._parent.glob(self._prefix + "*")):
            if folder in own or folder.lstat().st_uid != os.getuid():
                continue
            link = await self._inherit(folder)
            if link is None:
                await asyncio.to_thread(clean, folder)
                continue
            for fact in link.adopted.values():
                if fact["instance"] not in self._instances:
                    self._take_over(link, fact)
        unknown = [instance for instance in self._instances.values() if instance.id not in keep]
        await asyncio.gather(*(instance.kill() for instance in unknown))
        return [instance.id for instance in unknown]

    async def strays(self, keep: Collection[str]) -> list[str]:
        return [name for name in self._instances if name not in keep]

    async def detach(self) -> None:
        """Let go of all instances without ending them; they go on for `durable_s`."""
        for link in await self._take_links():
            link.detach()

    async def close(self) -> None:
        await asyncio.gather(*(link.close() for link in await self._take_links()))

    async def _take_links(self) -> list[ForkLink]:
        tasks = [*self._links.values(), *self._inherited.values()]
        self._links, self._inherited = {}, {}
        links = await asyncio.gather(*tasks, return_exceptions=True)
        return [link for link in links if isinstance(link, ForkLink)]

    def _watch(self, instance: ProcessInstance, pid: int) -> None:
        self._instances[instance.id] = instance
        instance.watch(pid)
        instance.on_exit(lambda why: self._forget(instance))

    def _forget(self, instance: ProcessInstance) -> None:
        if self._instances.get(instance.id) is instance:
            del self._instances[instance.id]

    async def _undo(self, spawning: asyncio.Task[dict[str, Any]], instance: ProcessInstance) -> None:
        try:
            self._watch(instance, int((await spawning)["pid"]))
        except StartFailed:
            # Nothing was started, or everything is being ended: only files may be left.
            instance.pid = 0
        await instance.kill() if instance.pid else await asyncio.to_thread(
            shutil.rmtree, instance.socket_path.parent, ignore_errors=True
        )

    def _take_over(self, link: ForkLink, fact: Mapping[str, Any]) -> ProcessInstance:
        instance = ProcessInstance(link, Path(fact["folder"]), fact["instance"], fact["secret"], self._fleet)
        self._watch(instance, int(fact["pid"]))
        return instance

    async def _inherit(self, folder: Path) -> ForkLink | None:
        """The forkserver that an earlier process left in `folder`; asked once."""
        task = self._inherited.get(folder)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = self._inherited[folder] = asyncio.create_task(ForkLink.succeed(folder))
        return await asyncio.shield(task)

    async def _link(self, spec: SandboxSpec) -> ForkLink:
        """The forkserver for this kind of sandbox, started on first use and again if it died."""
        preload = spec.env is not None and spec.env.preload
        key = (
            json.dumps([spec.env.entry_point, spec.env.modules, [*map(str, spec.env.python_path)], spec.variables])
            if preload and spec.env
            else ""
        )
        task = self._links.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() or task.result().over)):
            dead = task.result() if task is not None and not task.cancelled() and not task.exception() else None
            task = self._links[key] = asyncio.create_task(self._open(spec, preload, dead))
        return await asyncio.shield(task)

    async def _open(self, spec: SandboxSpec, preload: bool, dead: ForkLink | None) -> ForkLink:
        if sys.platform != "linux":
            raise RuntimeUnavailable(f"the process runtime needs Linux, this is {sys.platform}")
        if dead is not None:
            await dead.close()
        link = self._launch()
        folder = link.folder
        env = spec.env if preload else None
        modules = [env.host, *env.modules, env.entry_point.partition(":")[0]] if env else []
        path = [job.package_paths()[0], *(env.python_path if env else ())]
        secret = new_secret()
        try:
            answer = await link.call(
                "hello",
                env.make_timeout_s if env else spec.start_timeout_s,
                folder=str(folder),
                secret=secret,
                durable_s=self._durable_s,
                preload=modules,
                python_path=[str(part.absolute()) for part in path],
                variables=dict(spec.variables) if env else {},
            )
            if env and answer["threads"] > 1:
                raise StartFailed(
                    f"importing {', '.join(modules[1:])} started {answer['threads'] - 1} threads, which do not "
                    "survive a fork; set env.preload to false",
                    permanent=True,
                )
            if self._grants is None:
                self._grants = await self._find_grants(link)
            link.note(secret, self._grants.places)
        except BaseException:
            await link.close()
            raise
        return link

    def _launch(self) -> ForkLink:
        try:
            folder = Path(tempfile.mkdtemp(prefix=self._prefix, dir=self._parent))
        except OSError as error:
            raise RuntimeUnavailable(
                f"sandboxes need a folder under {self._parent}: {error}; make room there, or set TMPDIR"
            ) from None
        try:
            return ForkLink.launch(folder, durable=self._durable_s > 0)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise RuntimeUnavailable(f"the forkserver cannot be started with {sys.executable}: {error}") from None

    async def _find_grants(self, link: ForkLink) -> Grants:
        answer = await link.call("probe", PROBE_TIMEOUT_S, folder=str(link.folder / "probe"))
        refused = str(answer["refused"])
        wrapped = bool(self._bubblewrap) and await asyncio.to_thread(bubblewrap_works, self._bubblewrap)
        level: Level = self._level or ("namespaces" if not refused else "bubblewrap" if wrapped else "plain")
        if (level == "namespaces" and refused) or (level == "bubblewrap" and not wrapped):
            raise RuntimeUnavailable(
                f"isolation {level!r} is not to be had here: {refused or 'bwrap is missing or refused'}"
            )
        groups = answer["groups"] if self._limits != "rlimits" else {"places": {}, "refused": {}}
        if self._limits == "groups" and groups["refused"]:
            raise RuntimeUnavailable(f"not all limits by control groups are to be had here: {groups['refused']}")
        overlay = "" if level != "namespaces" else str(answer["overlay_refused"])
        return Grants(level, refused, overlay, groups["places"], groups["refused"])
