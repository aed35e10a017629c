"""Sandboxes as Docker containers, reached over a Unix socket that is mounted into them.

A container outlives the process that started it for `orphan_ttl_s`, so that the next manager of the fleet can adopt it.
What belongs to the fleet is known by its label and its name; nothing else is ever touched.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from docker.errors import NotFound

from rocknroll.sandbox import owner as processes
from rocknroll.sandbox.channel import check_socket_path
from rocknroll.sandbox.errors import RuntimeUnavailable, SpecInvalid, StartTimeout
from rocknroll.sandbox.nodes import this_node
from rocknroll.sandbox.runtimes import docker_image
from rocknroll.sandbox.runtimes.base import Isolation
from rocknroll.sandbox.runtimes.docker_daemon import Daemon
from rocknroll.sandbox.runtimes.docker_folder import INSIDE, FleetFolder, InstanceFolder, remove_if_empty, slots
from rocknroll.sandbox.runtimes.docker_instance import DockerInstance, remove_container
from rocknroll.sandbox.runtimes.docker_options import (
    FLEET,
    FOLDER,
    INSTANCE,
    NAMESPACE,
    OWNER,
    SPEC,
    container,
    variables,
)
from rocknroll.sandbox.spec import SandboxSpec

STARTS = 6
"""At once; measured, more only make each other late."""
ORPHAN_TTL_S = 60.0
_LIMITS = {
    "MemoryLimit": "memory limit",
    "SwapLimit": "swap limit",
    "PidsLimit": "limit of processes",
    "CpuCfsQuota": "cpu limit",
}
"""What a kernel may be built or booted without, by the name in the daemon's answer."""


@dataclass(frozen=True)
class _Source:
    """What containers of one specification are made from."""

    image: Mapping[str, Any]
    template: Path | None
    """Tar to be unpacked at each start; None when there is none, or it is in the image."""


class DockerRuntime:
    """Containers of the fleet `fleet_id` (1 to 24 letters, digits, `-`, `_`), see `base.Runtime`.

    Args:
        folder: parent of the fleet's folder on this machine; None is the temporary folder.
        base_url: the daemon's socket, `unix://…`; None is `$DOCKER_HOST`, else Docker's default.
        orphan_ttl_s: a container without a connection for so long ends by itself.
    """

    name = "docker"

    def __init__(
        self,
        fleet_id: str,
        folder: Path | None = None,
        base_url: str | None = None,
        orphan_ttl_s: float = ORPHAN_TTL_S,
    ) -> None:
        self.node = this_node()
        self._fleet_id, self._orphan_ttl_s = fleet_id, orphan_ttl_s
        self._folder = FleetFolder(fleet_id, folder)
        self._daemon = Daemon(base_url)
        self._starting = asyncio.Semaphore(STARTS)
        self._instances: set[DockerInstance] = set()
        self._sources: dict[tuple[str, ...], asyncio.Task[_Source]] = {}
        self._info: Mapping[str, Any] | None = None
        self._used = False

    async def isolation(self) -> Isolation:
        info = await self._ask_daemon()
        missing = [what for name, what in _LIMITS.items() if not info.get(name)]
        if not any("seccomp" in option for option in info.get("SecurityOptions") or ()):
            missing.append("filter of system calls")
        return Isolation(
            "container",
            ("processes", "files", "network", "ipc", "privileges", "memory", "cpu share"),
            ("kernel", "disk, with writable_root"),
            f"the kernel or the daemon lacks: {', '.join(missing)}" if missing else "",
            "boot the kernel with cgroup_enable=memory swapaccount=1" if missing else "",
        )

    async def _ask_daemon(self) -> Mapping[str, Any]:
        if self._info is None:
            info = await self._daemon.call(lambda client: client.info())
            if any("userns" in option for option in info.get("SecurityOptions") or ()):
                raise RuntimeUnavailable(
                    "the Docker daemon remaps users (userns-remap), so containers cannot read what the fleet gives "
                    "them; run the fleet against a daemon without it"
                )
            self._info = info
        return self._info

    async def start(self, spec: SandboxSpec, instance_id: str, floor: int) -> DockerInstance:
        self._used = True
        slot = self._folder.slot()
        check_socket_path(slot.socket)
        instance = DockerInstance(self._daemon, self._name(slot), instance_id, slot, secrets.token_hex(16))
        async with self._starting:
            self._instances.add(instance)
            launch = asyncio.ensure_future(self._launch(instance, spec, floor))
            try:
                async with asyncio.timeout(spec.start_timeout_s):
                    await asyncio.shield(launch)
                    await instance.listening()
            except BaseException as error:
                await asyncio.shield(self._abandon(instance, launch))
                if isinstance(error, TimeoutError):
                    raise StartTimeout(f"the container did not come up within {spec.start_timeout_s:g} s") from None
                raise
        return instance

    async def _launch(self, instance: DockerInstance, spec: SandboxSpec, floor: int) -> None:
        await self._ask_daemon()
        source = await self._source(spec)
        config = {
            "socket": f"{INSIDE}/run/{instance.socket_path.name}",
            "workdir": spec.workdir,
            "variables": variables(spec, source.image, instance.instance_id),
            "token": floor,
            "secret": instance.secret,
            "user": spec.user,
            "roots": list(spec.roots),
            "orphan_ttl_s": self._orphan_ttl_s,
        }
        owner = processes.identity(os.getpid())
        labels = {
            FLEET: self._fleet_id,
            INSTANCE: instance.instance_id,
            SPEC: spec.fingerprint,
            OWNER: owner,
            NAMESPACE: str(Path("/proc/self/ns/pid").readlink()),
            FOLDER: str(instance.folder.root),
        }
        body = container(spec, source.image, instance.folder, labels, source.template)

        def create(client: docker.APIClient) -> int:
            self._folder.make()
            instance.folder.make(config, owner)
            client.create_container_from_config(body, instance.name)
            client.start(instance.name)
            return int(client.inspect_container(instance.name)["State"]["Pid"])

        await instance.watch(await self._daemon.call(create))

    async def _abandon(self, instance: DockerInstance, launch: asyncio.Future[None]) -> None:
        """Wait for what cannot be called back, then remove what came of it."""
        await asyncio.wait([launch])
        if not launch.cancelled():
            launch.exception()  # told by whoever abandons
        try:
            await instance.remove(patience_s=0.0)
        except RuntimeUnavailable:
            return  # the start failed for the same reason; `sweep` finds what is left
        finally:
            self._instances.discard(instance)

    async def _source(self, spec: SandboxSpec) -> _Source:
        """The image, made ready for the specification; that is done once for each content."""
        image = await self._daemon.call(docker_image.inspect, spec)
        belongs = spec.writable_root and spec.user != "root"
        if spec.template is None and not belongs:
            return _Source(image, None)
        key = (image["Id"], spec.workdir, spec.user, str(spec.template), str(spec.writable_root))
        task = self._sources.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = self._sources[key] = asyncio.create_task(self._prepare(spec, image))
        return await asyncio.shield(task)

    async def _prepare(self, spec: SandboxSpec, image: Mapping[str, Any]) -> _Source:
        def work(client: docker.APIClient) -> _Source:
            archive = None
            if spec.template is not None:
                self._folder.make()
                with tempfile.NamedTemporaryFile(dir=self._folder.path, delete=False) as file:
                    archive = Path(file.name)
                    try:
                        content = docker_image.write_template(spec, file)
                    except SpecInvalid:
                        archive.unlink()
                        raise
                archive.chmod(0o644)  # the folder around it is closed
                archive = archive.replace(self._folder.path / f"template-{content[:16]}.tar")
            if not spec.writable_root:
                return _Source(image, archive)
            try:
                return _Source(client.inspect_image(docker_image.layered(client, spec, image, archive)), None)
            finally:
                if archive is not None:
                    archive.unlink()

        return await self._daemon.call(work)

    async def adopt(self, spec: SandboxSpec, record: Mapping[str, Any]) -> DockerInstance | None:
        if record.get("runtime") != self.name:
            return None
        self._used = True
        folder = InstanceFolder(Path(str(record["folder"])))
        name, instance_id, secret = (str(record[key]) for key in ("name", "instance", "secret"))
        if name != self._name(folder):
            return None  # another fleet's record
        instance = DockerInstance(self._daemon, name, instance_id, folder, secret)
        found = await self._daemon.call(_inspect, name)
        labels = found["Config"]["Labels"] if found else {}
        if found and (labels.get(FLEET), labels.get(INSTANCE)) != (self._fleet_id, instance_id):
            return None
        pid = int(found["State"]["Pid"]) if found else 0
        if not pid or labels.get(SPEC) != spec.fingerprint or not folder.listens():
            await instance.kill()
            return None
        await asyncio.to_thread(folder.claim, processes.identity(os.getpid()))
        await instance.watch(pid)
        self._instances.add(instance)
        return instance

    async def sweep(self, keep: Collection[str]) -> list[str]:
        kept = {instance.name for instance in self._instances}
        found = await self._daemon.call(_of_fleet, self._fleet_id)
        removed = []
        folders = {instance.folder.root for instance in self._instances}
        for each in found:
            name, instance_id = str(each["Names"][0]).lstrip("/"), str(each["Labels"][INSTANCE])
            if instance_id in keep or name in kept:
                folders.add(Path(each["Labels"][FOLDER]))
            elif name.startswith(self._prefix):
                await self._daemon.call(remove_container, name)
                removed.append(instance_id)
        for slot in await asyncio.to_thread(slots, self._folder.path):
            if slot.root not in folders:
                await asyncio.to_thread(slot.remove)
        return removed

    async def strays(self, keep: Collection[str]) -> list[str]:
        if not self._used:
            return []
        found = await self._daemon.call(_of_fleet, self._fleet_id)
        return [name for each in found if (name := str(each["Labels"][INSTANCE])) not in keep]

    async def commit(self, instance: DockerInstance, tag: str) -> str:
        """Snapshot a sandbox that has `writable_root` into an image for warm starts; returns the image's id.

        It stands still meanwhile. Its memory-backed folders and everything under `/rock` are not in the image.

        Raises:
            SpecInvalid: its root is not writable, so that there is nothing to keep.
            SandboxLost, RuntimeUnavailable: its container or the daemon is gone.
        """
        return await self._daemon.call(docker_image.snapshot, instance.name, tag)

    async def close(self) -> None:
        try:
            await asyncio.gather(*(self._kill(instance) for instance in list(self._instances)), return_exceptions=True)
            if self._used:
                await self.sweep(())
        finally:
            await asyncio.to_thread(remove_if_empty, self._folder.path)
            await asyncio.to_thread(self._daemon.close)

    async def _kill(self, instance: DockerInstance) -> None:
        try:
            await instance.kill()
        finally:
            self._instances.discard(instance)

    @property
    def _prefix(self) -> str:
        return f"rock-{self._fleet_id}-"

    def _name(self, folder: InstanceFolder) -> str:
        return self._prefix + folder.root.name


def _inspect(client: docker.APIClient, name: str) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = client.inspect_container(name)
    except NotFound:
        return {}
    return found


def _of_fleet(client: docker.APIClient, fleet_id: str) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = client.containers(all=True, filters={"label": f"{FLEET}={fleet_id}"})
    return found
