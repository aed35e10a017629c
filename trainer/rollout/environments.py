"""Environments of a rollout: one leased sandbox for each episode, from the fleet of the task's domain.

A broken, cancelled or remarkably slow sandbox is recycled when its episode ends; the next one gets a
fresh instance. What the sandboxes do is measured on the way: seconds at work, and who is slow.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

from rocknroll.envs.faulty import FAULT_SEED
from rocknroll.envs.remote import RemoteEnv
from rocknroll.envs.text import Task
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.slowness import FailSlow, SlownessPolicy, Suspected

SLOWNESS = SlownessPolicy(stride=16)
"""Judged less often than by default: steps are many here, and a judgement costs as much as several."""


class FleetEnvironments:
    """Leases a sandbox of the task's domain for every episode."""

    def __init__(
        self,
        fleets: Mapping[str, Fleet],
        *,
        lease_s: float,
        step_timeout_s: float,
        reset_timeout_s: float | None = None,
        wait_s: float | None = None,
        faulty: Collection[str] = (),
    ) -> None:
        """
        Args:
            fleets: by domain (`Task.domain`).
            wait_s: how long an episode waits for a sandbox at most.
            faulty: domains whose environment is a `FaultyEnv`; its faults are seeded with the episode's id.
        """
        self._fleets = fleets
        self._lease_s = lease_s
        self._timeouts_s: dict[str, Any] = {"step_timeout_s": step_timeout_s, "reset_timeout_s": reset_timeout_s}
        self._wait_s = wait_s
        self._faulty = faulty
        self._slowness = {domain: FailSlow(SLOWNESS) for domain in fleets}
        self._tally = {"busy_s": 0.0, "slow": 0.0}

    @asynccontextmanager
    async def lease(self, owner: str, task: Task) -> AsyncIterator[MeasuredEnv]:
        """A freshly leased environment; a broken or cancelled episode leaves no used sandbox behind.

        Raises:
            SandboxError: no sandbox can be had.
        """
        fleet, slowness = self._fleets[task.domain], self._slowness[task.domain]
        sandbox = await fleet.lease(owner=owner, ttl_s=self._lease_s, timeout_s=self._wait_s)
        options = {FAULT_SEED: owner} if task.domain in self._faulty else {}
        env = MeasuredEnv(RemoteEnv(sandbox, **self._timeouts_s), sandbox.id, slowness, self._tally, options)
        recycle = True
        try:
            yield env
            recycle = env.slow
        finally:
            self._tally["slow"] += env.slow
            if recycle:
                slowness.forget(sandbox.id)
            await sandbox.release(recycle)

    def metrics(self) -> dict[str, float]:
        """Since the start: `busy_s`, sandbox-seconds spent in steps and resets, and how many sandboxes were `slow`."""
        return dict(self._tally)


class MeasuredEnv:
    """The environment of one leased sandbox, with an eye on how long its steps take."""

    def __init__(
        self,
        env: RemoteEnv,
        sandbox_id: str,
        slowness: FailSlow,
        tally: dict[str, float],
        options: Mapping[str, Any],
    ) -> None:
        """`options` are added to those of every reset."""
        self.slow = False
        """Its steps take much longer than those of its peers at the same time."""
        self._env = env
        self._sandbox_id = sandbox_id
        self._slowness = slowness
        self._tally = tally
        self._options = options

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """See `RemoteEnv.reset`."""
        began_s = time.perf_counter()
        try:
            return await self._env.reset(seed, {**(options or {}), **self._options})
        finally:
            self._tally["busy_s"] += time.perf_counter() - began_s

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """See `RemoteEnv.step`."""
        began_s = time.perf_counter()
        try:
            result = await self._env.step(action)
        finally:
            took_s = time.perf_counter() - began_s
            self._tally["busy_s"] += took_s
        if isinstance(self._slowness.observe(self._sandbox_id, took_s, time.monotonic()), Suspected):
            self.slow = True
        return result
