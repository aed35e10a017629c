"""`SandboxedEnv`: any Gymnasium environment, played synchronously, with its body in a sandbox of its own.

A thread keeps the event loop that the fleet of one lives on. After a failure the next `reset` gets
a fresh sandbox; the failed call itself raises, it never returns a made-up observation or reward.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import gymnasium

from rocknroll.envs.remote import RemoteEnv
from rocknroll.envs.space_wire import decode
from rocknroll.sandbox.errors import SandboxError, SpecInvalid
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.leased import LeasedSandbox
from rocknroll.sandbox.runtimes.base import Runtime
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.sandbox.spec import SandboxSpec

LEASE_S = 300.0
"""The heartbeat runs in its own thread, so this only matters when the whole process stands still."""

Result = TypeVar("Result")


class SandboxedEnv(gymnasium.Env[Any, Any]):
    """Plays the environment of `spec`. Close it, or use it in a `with` statement.

    Raises:
        SpecInvalid: the spec names no environment.
        FleetExhausted: the environment cannot be made; the text says why.
    """

    def __init__(self, spec: SandboxSpec, runtime: Runtime | None = None, step_timeout_s: float = 30.0) -> None:
        if spec.env is None:
            raise SpecInvalid("the spec has no environment; set `env`")
        self._spec, self._step_timeout_s = spec, step_timeout_s
        self._runtime = runtime or ProcessRuntime()
        self._sandbox: LeasedSandbox | None = None
        self._env: RemoteEnv | None = None
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sandboxed-env", daemon=True)
        self._thread.start()
        try:
            self._fleet = self._call(self._open())
            spaces = self._call(self._ready().make())
        except BaseException:
            self.close()
            raise
        self.action_space = decode(spaces["action_space"])
        self.observation_space = decode(spaces["observation_space"])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode, in a fresh sandbox if the last one was lost.

        Raises:
            SandboxError: see `RemoteEnv.reset`.
        """
        super().reset(seed=seed)
        return self._guard(self._ready().reset(seed=seed, options=options))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One action.

        Raises:
            SandboxError: see `RemoteEnv.step`; only `reset` can go on from there.
        """
        if self._env is None:
            raise gymnasium.error.ResetNeeded("the last sandbox was lost; call reset")
        return self._guard(self._env.step(action))

    def close(self) -> None:
        """End the sandbox and the thread. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if hasattr(self, "_fleet"):
            self._call(self._fleet.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _ready(self) -> RemoteEnv:
        if self._env is None:
            self._sandbox = self._call(self._fleet.lease(owner="sandboxed-env", ttl_s=LEASE_S))
            self._env = RemoteEnv(self._sandbox, step_timeout_s=self._step_timeout_s)
        return self._env

    def _guard(self, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            return self._call(work)
        except SandboxError:
            sandbox, self._sandbox, self._env = self._sandbox, None, None
            if sandbox is not None:
                with contextlib.suppress(SandboxError):
                    self._call(sandbox.release(recycle=True))
            raise

    async def _open(self) -> Fleet:
        return await Fleet(self._spec, size=1, runtime=self._runtime).__aenter__()

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
