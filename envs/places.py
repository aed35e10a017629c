"""Opens where the episodes of any family are played: a fleet with its environment, or what the family opens itself."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocknroll.envs.remote import RemoteEnv
from rocknroll.envs.text import Concludes, Family, OutsideFamily, Places, Preloads, Task, TextEnvironment
from rocknroll.sandbox.errors import SandboxError
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.runtimes.base import Runtime
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.sandbox.spec import EnvSpec, SandboxSpec

LEASE_S = 300.0
"""Leases renew themselves on their event loop; this only matters when the whole process stands still."""


@dataclass(frozen=True)
class Patience:
    """How long is waited for what. Of a family that plays outside of its sandboxes, its own settings say."""

    step_s: float = 30.0
    reset_s: float = 60.0
    sandbox_s: float = 300.0
    """For a free sandbox, at the beginning of an episode."""


class FleetPlaces:
    """One leased sandbox for each episode; it is recycled when the episode ends in an exception."""

    def __init__(self, fleet: Fleet, patience: Patience) -> None:
        self._fleet, self._patience = fleet, patience

    @asynccontextmanager
    async def lease(self, owner: str, task: Task) -> AsyncIterator[TextEnvironment]:
        """See `Places`.

        Raises:
            LeaseTimeout: no sandbox was free in time. FleetExhausted: none can ever start.
        """
        patience = self._patience
        async with await self._fleet.lease(owner, LEASE_S, patience.sandbox_s) as sandbox:
            yield RemoteEnv(sandbox, step_timeout_s=patience.step_s, reset_timeout_s=patience.reset_s)


@asynccontextmanager
async def open_places(
    family: Family, count: int, patience: Patience, runtime: Runtime | None = None
) -> AsyncIterator[Places]:
    """Places for `count` episodes at once. `runtime`: of families that run inside sandboxes; processes by default.

    Raises:
        EnvDataError: data is missing. RuntimeUnavailable: sandboxes cannot be had here.
    """
    if isinstance(family, OutsideFamily):
        async with family.places(count) as places:
            yield places
    else:
        async with Fleet(sandbox_spec(family), count, runtime or ProcessRuntime()) as fleet:
            yield FleetPlaces(fleet, patience)


def sandbox_spec(family: Family) -> SandboxSpec:
    """A sandbox that has the family's environment in it."""
    return SandboxSpec(
        name=re.sub(r"[^A-Za-z0-9._-]", ".", family.name)[-40:],
        env=env_spec(family),
        reuse="reset",
        readable=tuple(family.data_folders()),
    )


def env_spec(family: Family) -> EnvSpec:
    """How the family's environment is made in a sandbox."""
    modules = tuple(family.modules()) if isinstance(family, Preloads) else ()
    names = (family.entry_point.partition(":")[0], *modules)
    return EnvSpec(
        entry_point=family.entry_point, kwargs=dict(family.env_kwargs()), modules=modules, python_path=folders(*names)
    )


def folders(*modules: str) -> tuple[Path, ...]:
    """Where modules are imported from that a sandbox would not find by itself: a project's own, not installed ones."""
    found = dict.fromkeys(_folder(name.partition(".")[0]) for name in modules)
    return tuple(folder for folder in found if folder is not None)


def _folder(package: str) -> Path | None:
    known = package == "rocknroll" or package in sys.stdlib_module_names
    spec = None if known else importlib.util.find_spec(package)
    if spec is None or spec.origin in (None, "built-in", "frozen"):
        return None
    file = Path(str(spec.origin)).resolve()
    folder = file.parents[1] if spec.submodule_search_locations else file.parent
    installed = "site-packages" in folder.parts and folder.is_relative_to(Path(sys.prefix).resolve())
    return None if installed else folder


class Episode:
    """One episode in a lease of its own, for callers whose episodes do not fit into one `async with`.

    Whatever raises ends it: the lease is given back, its sandbox recycled.
    """

    def __init__(self, places: Places, owner: str, task: Task) -> None:
        self.task = task
        self._places, self._owner = places, owner
        self._stack = AsyncExitStack()
        self._env: TextEnvironment | None = None

    @property
    def open(self) -> bool:
        """It holds its lease."""
        return self._env is not None

    async def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Lease and begin; once.

        Raises:
            SandboxError: no sandbox can be had, or the environment failed.
        """
        try:
            self._env = await self._stack.enter_async_context(self._places.lease(self._owner, self.task))
            return await self._env.reset(seed=seed, options=self.task.options)
        except BaseException as error:
            await self.end(error)
            raise

    async def step(self, action: str) -> tuple[str, float, bool, bool, Mapping[str, Any]]:
        """One action. The lease is given back with the last one.

        Raises:
            SandboxError: the infrastructure or the environment failed.
        """
        assert self._env is not None, "the episode is over"
        try:
            answer = await self._env.step(action)
        except BaseException as error:
            await self.end(error)
            raise
        if answer[2] or answer[3]:
            await self.end()
        return answer

    async def conclude(self) -> float:
        """End it; returns what unfinished work is worth, where the environment can say so (else 0).

        Raises:
            SandboxError: the infrastructure or the environment failed.
        """
        worth = 0.0
        env: object = self._env
        try:
            if isinstance(env, Concludes):
                worth, _ = await env.conclude()
        except BaseException as error:
            await self.end(error)
            raise
        await self.end()
        return worth

    async def end(self, error: BaseException | None = None) -> None:
        """Give the lease back; after an `error` its sandbox is recycled. Idempotent."""
        stack, self._stack, self._env = self._stack, AsyncExitStack(), None
        if error is None:
            await stack.aclose()
            return
        with contextlib.suppress(SandboxError):  # that it is lost as well says less than why the episode ended
            await stack.__aexit__(type(error), error, error.__traceback__)
