"""Environments of a rollout: one leased sandbox for each episode, from the fleet of the task's domain; or, where the
environment runs outside of its sandboxes, whatever its family leases.

A broken, cancelled or remarkably slow sandbox is recycled when its episode ends; the next one gets a
fresh instance. What the sandboxes do is measured on the way: seconds at work, and who is slow.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

from rocknroll.envs.faulty import FAULT_SEED
from rocknroll.envs.remote import RemoteEnv
from rocknroll.envs.text import Concludes, Places, Task, TextEnvironment
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.slowness import FailSlow, SlownessPolicy, Suspected
from rocknroll.trainer.rollout.showing import Played

SLOWNESS = SlownessPolicy(stride=16)
"""Judged less often than by default: steps are many here, and a judgement costs as much as several."""


class FleetEnvironments:
    """Leases a sandbox of the task's domain for every episode."""

    def __init__(
        self,
        fleets: Mapping[str, Fleet],
        *,
        sizes: Mapping[str, int] | None = None,
        lease_s: float,
        step_timeout_s: float,
        reset_timeout_s: float | None = None,
        wait_s: float | None = None,
        faulty: Collection[str] = (),
        outside: Mapping[str, Places] | None = None,
    ) -> None:
        """
        Args:
            fleets: by domain (`Task.domain`).
            sizes: sandboxes of each domain, to be scaled from.
            outside: places of the domains that have no fleet here, by domain.
            wait_s: how long an episode waits for a sandbox at most.
            faulty: domains whose environment is a `FaultyEnv`; its faults are seeded with the episode's id.
        """
        self._fleets = fleets
        self._sizes = sizes or {}
        self._lease_s = lease_s
        self._timeouts_s: dict[str, Any] = {"step_timeout_s": step_timeout_s, "reset_timeout_s": reset_timeout_s}
        self._wait_s = wait_s
        self._faulty = faulty
        self._outside = outside or {}
        self._slowness = {domain: FailSlow(SLOWNESS) for domain in fleets}
        self._tally = {"busy_s": 0.0, "slow": 0.0}
        self.playing: dict[str, Played] = {}
        """What is played in each sandbox, by its id."""

    @asynccontextmanager
    async def lease(self, owner: str, task: Task) -> AsyncIterator[TextEnvironment]:
        """A freshly leased environment; a broken or cancelled episode leaves no used sandbox behind.

        Raises:
            SandboxError: no sandbox can be had.
        """
        if task.domain in self._outside:
            async with self._outside[task.domain].lease(owner, task) as outside:
                yield TimedEnv(outside, self._tally)
            return
        fleet, slowness = self._fleets[task.domain], self._slowness[task.domain]
        sandbox = await fleet.lease(owner=owner, ttl_s=self._lease_s, timeout_s=self._wait_s)
        options = {FAULT_SEED: owner} if task.domain in self._faulty else {}
        played = self.playing[sandbox.id] = Played(task.id)
        remote = RemoteEnv(sandbox, **self._timeouts_s)
        env = MeasuredEnv(remote, sandbox.id, slowness, self._tally, options, played)
        recycle = True
        try:
            yield env
            recycle = env.slow
        finally:
            del self.playing[sandbox.id]
            self._tally["slow"] += env.slow
            if recycle:
                slowness.forget(sandbox.id)
            await sandbox.release(recycle)

    def scale(self, share: float) -> None:
        """Keep so much of each domain's sandboxes from now on; those that are too many go when nobody holds them."""
        for domain, fleet in self._fleets.items():
            fleet.scale(part_of(self._sizes[domain], share))

    def metrics(self) -> dict[str, float]:
        """Since the start: `busy_s`, sandbox-seconds spent in steps and resets, and how many sandboxes were `slow`."""
        return dict(self._tally)


def part_of(size: int, share: float) -> int:
    """So much of `size` sandboxes, at least one."""
    return max(1, math.ceil(size * share - 1e-9))


class TimedEnv:
    """An environment that adds the seconds of its calls to `busy_s`."""

    def __init__(self, env: TextEnvironment, tally: dict[str, float]) -> None:
        self._env = env
        self._tally = tally

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """See `TextEnvironment`."""
        began_s = time.perf_counter()
        try:
            return await self._env.reset(seed=seed, options=options)
        finally:
            self._tally["busy_s"] += time.perf_counter() - began_s

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """See `TextEnvironment`."""
        began_s = time.perf_counter()
        try:
            return await self._env.step(action)
        finally:
            took_s = time.perf_counter() - began_s
            self._tally["busy_s"] += took_s
            self._took(took_s)

    async def conclude(self) -> tuple[float, dict[str, Any]]:
        """See `Concludes`; nothing where the environment cannot."""
        if not isinstance(self._env, Concludes):
            return 0.0, {}
        began_s = time.perf_counter()
        try:
            return await self._env.conclude()
        finally:
            self._tally["busy_s"] += time.perf_counter() - began_s

    def _took(self, step_s: float) -> None:
        """Told of every step."""


class MeasuredEnv(TimedEnv):
    """The environment of one leased sandbox, with an eye on how long its steps take."""

    def __init__(
        self,
        env: RemoteEnv,
        sandbox_id: str,
        slowness: FailSlow,
        tally: dict[str, float],
        options: Mapping[str, Any],
        played: Played,
    ) -> None:
        """`options` are added to those of every reset; `played` hears what is done."""
        super().__init__(env, tally)
        self.slow = False
        """Its steps take much longer than those of its peers at the same time."""
        self._sandbox_id = sandbox_id
        self._slowness = slowness
        self._options = options
        self._played = played

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """See `RemoteEnv.reset`."""
        begun = await super().reset(seed=seed, options={**(options or {}), **self._options})
        self._played.begin(begun[0])
        return begun

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """See `RemoteEnv.step`."""
        stepped = await super().step(action)
        self._played.add(action, stepped[0], stepped[1])
        return stepped

    def _took(self, step_s: float) -> None:
        if isinstance(self._slowness.observe(self._sandbox_id, step_s, time.monotonic()), Suspected):
            self.slow = True
