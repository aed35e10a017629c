"""Sandboxes for instances: fresh ones with the repository at its base commit, and nothing of what comes after it.

Instances that bring their files along (`tree`) share one kind of sandbox, in which their repository is made; of the
others each has an image. Fleets are opened when first asked for, and start sandboxes on demand.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from docker.errors import NotFound

from rocknroll.envs.hiding import hiding_runtime
from rocknroll.envs.swebench.building import LIBRARIES, image_with_tools
from rocknroll.envs.swebench.cleaning import cleaned_image
from rocknroll.envs.swebench.config import PlaceConfig
from rocknroll.envs.swebench.grading.script import WORKDIR
from rocknroll.envs.swebench.instance import Instance, RowError
from rocknroll.envs.swebench.mini.history import MAKE_REPOSITORY, stream_of
from rocknroll.envs.swebench.tools import tools_folder
from rocknroll.sandbox.errors import ImageNotFound
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.leased import LeasedSandbox
from rocknroll.sandbox.runtimes.base import Runtime
from rocknroll.sandbox.runtimes.docker_daemon import Daemon
from rocknroll.sandbox.spec import DEFAULT_IMAGE, Resources, SandboxSpec

LEASE_S = 120.0
START_PATIENCE_S = 300.0
"""There are as many sandboxes as are held at once, so a longer wait means that none can be started."""
SETUP_TIMEOUT_S = 120.0
LARGEST_FILE_BYTES = 1 << 30


class Workplaces:
    """Gives fresh sandboxes of any instance. Use as an async context manager.

    Args:
        count: how many sandboxes of one kind there are at most; a caller that holds one while it waits for more has to
            count them all.
    """

    def __init__(self, config: PlaceConfig, count: int) -> None:
        self._config, self._count = config, count
        self._stack = AsyncExitStack()
        self._runtime: Runtime | None = None
        self._opening = asyncio.Lock()
        self._fleets: dict[str, asyncio.Task[Fleet]] = {}

    async def __aenter__(self) -> Self:
        """
        Raises:
            RuntimeUnavailable: this machine has no daemon, or no isolation that hides files.
        """
        runtime = await hiding_runtime(self._config.runtime, "swebench", "the solutions could be read")
        self._runtime = runtime
        self._stack.push_async_callback(runtime.close)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for opening in self._fleets.values():
            opening.cancel()
        await asyncio.gather(*self._fleets.values(), return_exceptions=True)
        await self._stack.aclose()

    def workdir(self, instance: Instance) -> str:
        """Folder of the repository, as commands in its sandboxes name it."""
        return WORKDIR if self._config.runtime == "docker" else "."

    @asynccontextmanager
    async def fresh(self, instance: Instance, owner: str) -> AsyncIterator[LeasedSandbox]:
        """A sandbox that nobody used before, and nobody uses afterwards.

        Raises:
            RowError: this runtime cannot have it, or its files are not those of its base commit.
            ImageNotFound: its image is not here. SandboxError: no sandbox can be had.
        """
        fleet = await self._fleet(instance)
        sandbox = await fleet.lease(owner, ttl_s=LEASE_S, timeout_s=START_PATIENCE_S)
        try:
            if instance.tree is not None:
                await self._make_repository(sandbox, instance)
            yield sandbox
        finally:
            await sandbox.release(recycle=True)

    async def _make_repository(self, sandbox: LeasedSandbox, instance: Instance) -> None:
        assert instance.tree is not None
        done = await sandbox.exec(
            ["sh", "-c", MAKE_REPOSITORY], SETUP_TIMEOUT_S, stream_of(instance.tree), self.workdir(instance)
        )
        made = done.check().stdout.decode().strip()
        if made != instance.base_commit:
            raise RowError(f"its tree makes the commit {made[:12]} and not its base_commit {instance.base_commit[:12]}")

    async def _fleet(self, instance: Instance) -> Fleet:
        """The fleet of an instance's kind of sandbox; whoever asks first opens it, and nobody waits for other kinds."""
        kind = "" if instance.tree is not None else instance.id
        opening = self._fleets.get(kind)
        if opening is None:
            opening = self._fleets[kind] = asyncio.create_task(self._open(instance))
        try:
            return await asyncio.shield(opening)
        except BaseException:
            if opening.done():  # the next one may have more luck
                self._fleets.pop(kind, None)
            raise

    async def _open(self, instance: Instance) -> Fleet:
        assert self._runtime is not None, "use `async with Workplaces(…)`"
        spec = await self._spec(instance)
        fleet = Fleet(spec, size=self._count, runtime=self._runtime, owns_runtime=False, ready=0)
        return await self._stack.enter_async_context(fleet)

    async def _spec(self, instance: Instance) -> SandboxSpec:
        config = self._config
        resources = Resources(
            memory_bytes=config.memory_bytes,
            cpus=config.cpus,
            processes=config.processes,
            file_bytes=LARGEST_FILE_BYTES,
        )
        if instance.tree is not None:
            docker = config.runtime == "docker"
            tools = LIBRARIES if docker else str(tools_folder())
            return SandboxSpec(
                name="swebench",
                image=await _with_tools(config.image or DEFAULT_IMAGE) if docker else "",
                workdir=WORKDIR if docker else "/work",
                writable_root=True,
                bare=True,
                readable=() if docker else (Path(tools),),
                variables={
                    "PATH": _path(docker),
                    "PYTHONPATH": tools,
                    "PYTHONDONTWRITEBYTECODE": "1",
                    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                },
                resources=resources,
            )
        if config.runtime == "process":
            raise RowError("it has no `tree`, so it needs its image, which only Docker has: choose runtime docker")
        return SandboxSpec(
            name="swebench",
            image=await cleaned_image(instance, config),
            workdir=WORKDIR,
            user="root",
            writable_root=True,
            resources=resources,
        )


async def _with_tools(image: str) -> str:
    daemon = Daemon()
    try:
        return await daemon.call(image_with_tools, image)
    except NotFound:
        raise ImageNotFound(
            f"the image {image} is not on this machine: `rock image build` makes {DEFAULT_IMAGE}"
        ) from None
    finally:
        await asyncio.to_thread(daemon.close)


def _path(docker: bool) -> str:
    system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return system if docker else f"{Path(sys.base_prefix) / 'bin'}:{system}"
