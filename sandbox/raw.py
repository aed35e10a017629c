"""What `rock bench` compares with: the same things done without a fleet, straight by the machine's own means."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rocknroll.sandbox.spec import SandboxSpec

if TYPE_CHECKING:
    import docker

Once = Callable[[], Awaitable[float | None]]


class Raw(Protocol):
    """The other side of a comparison."""

    exec_name: str
    """The figure that a command in a sandbox is compared with."""

    async def open(self) -> None: ...

    def commands(self) -> Mapping[str, Once]:
        """A command, by the figure's name."""

    def starts(self) -> Mapping[str, Once]:
        """A start, by the figure's name; empty where there is nothing of the kind."""

    async def close(self) -> None: ...


class RawProcess:
    """A child process: what a command costs without any sandbox."""

    exec_name = "raw_spawn"

    async def open(self) -> None:
        return

    def commands(self) -> Mapping[str, Once]:
        return {"raw_spawn": self._spawn}

    def starts(self) -> Mapping[str, Once]:
        return {}

    async def _spawn(self) -> None:
        await asyncio.to_thread(subprocess.run, ["true"], check=True, capture_output=True)

    async def close(self) -> None:
        return


class RawDocker:
    """`docker run` and `docker exec` through the same library, with the same limits, but without the agent."""

    exec_name = "raw_exec"

    def __init__(self, spec: SandboxSpec) -> None:
        from rocknroll.sandbox.runtimes.docker_daemon import Daemon  # its library takes a moment to import

        self._spec = spec
        self._daemon = Daemon()
        self._body: dict[str, Any] = {}
        self._container = ""

    async def open(self) -> None:
        """Connect, and start the container that commands run in.

        Raises:
            RuntimeUnavailable: no daemon. ImageNotFound: no such image.
        """
        await self._daemon.call(self._open)

    def _open(self, client: docker.APIClient) -> None:
        from rocknroll.sandbox.runtimes.docker_folder import InstanceFolder
        from rocknroll.sandbox.runtimes.docker_image import inspect
        from rocknroll.sandbox.runtimes.docker_options import container

        image = inspect(client, self._spec)
        self._body = container(self._spec, image, InstanceFolder(Path("/nowhere")), {}, None)
        self._body["Entrypoint"] = ["sleep", "1000000"]
        self._body["HostConfig"]["Mounts"] = []
        self._container = self._run(client)

    def _run(self, client: docker.APIClient) -> str:
        name = f"rock-bench-{secrets.token_hex(6)}"
        client.create_container_from_config(self._body, name)
        client.start(name)
        return name

    def _execute(self, client: docker.APIClient, name: str) -> None:
        made = client.exec_create(name, ["true"], user=self._spec.user, workdir=self._spec.workdir)
        client.exec_start(made["Id"])

    def _run_and_execute(self, client: docker.APIClient) -> float:
        began_s = time.perf_counter()
        name = self._run(client)
        try:
            self._execute(client, name)
            return (time.perf_counter() - began_s) * 1e3
        finally:
            client.remove_container(name, force=True, v=True)

    def commands(self) -> Mapping[str, Once]:
        async def execute() -> None:
            await self._daemon.call(self._execute, self._container)

        return {"raw_exec": execute}

    def starts(self) -> Mapping[str, Once]:
        async def run() -> float:
            return await self._daemon.call(self._run_and_execute)

        return {"raw_run": run}

    async def close(self) -> None:
        if self._container:
            await self._daemon.call(lambda client: client.remove_container(self._container, force=True, v=True))
        self._daemon.close()
