"""One container as the fleet sees it: watched through its first process, so that its death needs no asking."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, NotFound

from rocknroll.sandbox import owner as processes
from rocknroll.sandbox.errors import RuntimeUnavailable, SandboxError, SandboxLost, StartFailed
from rocknroll.sandbox.nodes import this_node
from rocknroll.sandbox.runtimes.docker_boot import REFUSED
from rocknroll.sandbox.runtimes.docker_daemon import Daemon
from rocknroll.sandbox.runtimes.docker_folder import InstanceFolder
from rocknroll.sandbox.runtimes.docker_options import PYTHON

LISTEN_POLL_S = 0.002
REMOVAL_PATIENCE_S = 30.0
"""For so long a removal is tried again while the daemon is away (it may be restarting)."""
REMOVAL_PAUSE_S = 0.2
EXIT_PATIENCE_S = 2.0
"""The daemon learns of an exit a little later than the kernel."""
DYING_PATIENCE_S = 1.0
"""A first process is gone only after all others: a little later than its socket."""


class DockerInstance:
    """See `base.Instance`. `name` is the container's, known before there is one."""

    def __init__(self, daemon: Daemon, name: str, instance_id: str, folder: InstanceFolder, secret: str) -> None:
        self.name, self.instance_id, self.folder, self.secret = name, instance_id, folder, secret
        self.node = this_node()
        self.socket_path: Path = folder.socket
        self.pid = 0
        self.python: tuple[str, ...] = PYTHON
        self._daemon = daemon
        self._gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._unwatch: Callable[[], None] = lambda: None
        self._removal: asyncio.Task[None] | None = None

    @property
    def record(self) -> Mapping[str, Any]:
        return {
            "runtime": "docker",
            "name": self.name,
            "instance": self.instance_id,
            "folder": str(self.folder.root),
            "secret": self.secret,
        }

    async def watch(self, pid: int) -> None:
        """Look after the container whose first process was `pid` a moment ago; 0 when it had ended by then."""
        self.pid = pid
        if not pid:
            self._ended("its container ended")
            return
        self._unwatch = processes.watch(pid, lambda: self._ended("its container ended"))
        # The pid may have been given to another process before it was opened; then the daemon knows of the end.
        if (await self.state()).get("Pid") != pid:
            self._ended("its container ended")

    def _ended(self, reason: str) -> None:
        self._unwatch()
        if not self._gone.done():
            self._gone.set_result(reason)

    @property
    def way(self) -> Path:
        return self.socket_path

    def on_exit(self, callback: Callable[[SandboxLost], None]) -> None:
        self._gone.add_done_callback(lambda gone: callback(SandboxLost(gone.result())))

    async def listening(self) -> None:
        """Return once the agent has its socket.

        Raises:
            StartFailed: the container ended first, with what it said.
        """
        while not self.folder.listens():
            if self._gone.done():
                state = await self._state_at_rest()
                raise StartFailed(self._account(state), permanent=state.get("ExitCode") == REFUSED)
            await asyncio.sleep(LISTEN_POLL_S)

    async def state(self) -> Mapping[str, Any]:
        """The daemon's `State` of the container; empty when there is none any more."""

        def look(client: docker.APIClient) -> Mapping[str, Any]:
            try:
                found: Mapping[str, Any] = client.inspect_container(self.name)["State"]
            except NotFound:
                return {}
            return found

        return await self._daemon.call(look)

    async def _state_at_rest(self) -> Mapping[str, Any]:
        """The state once the daemon has noticed what the kernel already knows."""
        deadline_s = time.monotonic() + EXIT_PATIENCE_S
        while True:
            state = await self.state()
            if not state.get("Running") or not self._gone.done() or time.monotonic() > deadline_s:
                return state
            await asyncio.sleep(LISTEN_POLL_S)

    async def autopsy(self) -> str:
        try:
            await asyncio.wait([self._gone], timeout=DYING_PATIENCE_S)
            return self._account(await self._state_at_rest())
        except SandboxError as error:
            return f"the container cannot be asked: {error}"

    def _account(self, state: Mapping[str, Any]) -> str:
        if not state:
            text = "its container is gone"
        elif state.get("Running"):
            text = "its container still runs"
        else:
            code = int(state.get("ExitCode", 0))
            how = f"was killed by signal {code - 128}" if code > 128 else f"ended with exit code {code}"
            text = f"its container {how}"
        if state.get("OOMKilled"):
            text += ", out of memory"
        if state.get("Error"):
            text += f" ({state['Error']})"
        tail = self.folder.log_tail()
        return f"{text}; last output:\n{tail}" if tail else text

    async def kill(self) -> None:
        await self.remove(REMOVAL_PATIENCE_S)

    async def remove(self, patience_s: float) -> None:
        """`kill`, trying for so long when the daemon does not answer.

        Raises:
            RuntimeUnavailable: it did not; `DockerRuntime.sweep` removes what is left once it does.
        """
        if self._removal is None or (self._removal.done() and (self._removal.cancelled() or self._removal.exception())):
            self._removal = asyncio.create_task(self._remove(patience_s))
        await asyncio.shield(self._removal)

    async def _remove(self, patience_s: float) -> None:
        deadline_s = time.monotonic() + patience_s
        while True:
            try:
                await self._daemon.call(remove_container, self.name)
                break
            except RuntimeUnavailable:
                if time.monotonic() > deadline_s:
                    raise
                await asyncio.sleep(REMOVAL_PAUSE_S)
        await asyncio.to_thread(self.folder.remove)
        self._ended("its container was removed")

    async def output_tail(self) -> str:
        return await asyncio.to_thread(self.folder.log_tail)


def remove_container(client: docker.APIClient, name: str) -> None:
    """Kill and remove a container with its volumes; returns when it is gone, also when somebody else removes it."""
    deadline_s = time.monotonic() + REMOVAL_PATIENCE_S
    while True:
        try:
            client.remove_container(name, force=True, v=True)
            return
        except NotFound:
            return
        except APIError as error:
            if error.status_code != 409 or time.monotonic() > deadline_s:
                raise
        with contextlib.suppress(NotFound):
            client.inspect_container(name)
            time.sleep(REMOVAL_PAUSE_S / 10)
