"""Environments of a rollout: one leased sandbox for each episode."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rocknroll.envs.remote import RemoteEnv
from rocknroll.sandbox.fleet import Fleet


class FleetEnvironments:
    """Leases a sandbox from `fleet` for every episode and recycles it when the episode broke."""

    def __init__(self, fleet: Fleet, *, lease_s: float, step_timeout_s: float) -> None:
        self._fleet = fleet
        self._lease_s = lease_s
        self._step_timeout_s = step_timeout_s

    @asynccontextmanager
    async def lease(self, owner: str) -> AsyncIterator[RemoteEnv]:
        """A freshly leased environment; a broken or cancelled episode leaves no used sandbox behind.

        Raises:
            SandboxError: no sandbox can be had.
        """
        sandbox = await self._fleet.lease(owner=owner, ttl_s=self._lease_s)
        broken = True
        try:
            yield RemoteEnv(sandbox, step_timeout_s=self._step_timeout_s)
            broken = False
        finally:
            await sandbox.release(recycle=broken)
