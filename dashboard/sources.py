"""Sources made of others: a fleet and a run at once, and one that may only look."""

from __future__ import annotations

from dataclasses import replace

from rocknroll.dashboard.snapshot import Description, Episode, EventFacts, GroupFacts, Snapshot, TrajectoryFacts
from rocknroll.dashboard.source import Source, SourceAway, SourceRefused

READ_ONLY = "this dashboard only looks (--readonly); start it without that to change anything"


class FleetAndRun:
    """A manager's fleet, and a run; while no manager answers, the run's own sandboxes.

    `asked`: the fleet was named, so that its absence is worth telling; else it is told once it has been there.
    """

    def __init__(self, fleet: Source, run: Source, asked: bool) -> None:
        self._fleet, self._run, self._asked = fleet, run, asked
        self._shown: Source = fleet
        """Whose sandboxes are looked at."""
        self.title = f"{fleet.title}, {run.title}" if asked else run.title

    async def snapshot(self) -> Snapshot:
        learned = await self._run.snapshot()
        try:
            seen = await self._fleet.snapshot()
        except SourceAway as away:
            self._shown = self._fleet if learned.fleet is None or self._asked else self._run
            if self._shown is self._run:
                return learned
            return replace(learned, fleet=None, away=str(away) if self._asked else "")
        self._asked, self._shown = True, self._fleet
        return replace(seen, run=learned.run)

    async def describe(self, sandbox_id: str) -> Description:
        return await self._shown.describe(sandbox_id)

    async def logs(self, sandbox_id: str) -> str:
        return await self._shown.logs(sandbox_id)

    async def events(self, after: int = 0, limit: int = 1_000) -> tuple[EventFacts, ...]:
        return await self._shown.events(after, limit)

    async def restart(self, sandbox_id: str) -> None:
        await self._shown.restart(sandbox_id)

    async def remove(self, sandbox_id: str) -> None:
        await self._shown.remove(sandbox_id)

    def shell_command(self, sandbox_id: str) -> tuple[str, ...]:
        return self._shown.shell_command(sandbox_id)

    async def groups(self, limit: int = 500) -> tuple[GroupFacts, ...]:
        return await self._run.groups(limit)

    async def trajectories(self, limit: int = 500) -> tuple[TrajectoryFacts, ...]:
        return await self._run.trajectories(limit)

    async def trajectory(self, trajectory_id: str) -> Episode:
        return await self._run.trajectory(trajectory_id)

    async def close(self) -> None:
        await self._fleet.close()
        await self._run.close()


class ReadOnly:
    """Refuses whatever could change something, whoever asks: keys, the mouse, or code."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.title = f"{source.title} (read-only)"

    async def snapshot(self) -> Snapshot:
        return await self._source.snapshot()

    async def describe(self, sandbox_id: str) -> Description:
        return await self._source.describe(sandbox_id)

    async def logs(self, sandbox_id: str) -> str:
        return await self._source.logs(sandbox_id)

    async def events(self, after: int = 0, limit: int = 1_000) -> tuple[EventFacts, ...]:
        return await self._source.events(after, limit)

    async def restart(self, sandbox_id: str) -> None:
        raise SourceRefused(READ_ONLY)

    async def remove(self, sandbox_id: str) -> None:
        raise SourceRefused(READ_ONLY)

    def shell_command(self, sandbox_id: str) -> tuple[str, ...]:
        raise SourceRefused(READ_ONLY)

    async def groups(self, limit: int = 500) -> tuple[GroupFacts, ...]:
        return await self._source.groups(limit)

    async def trajectories(self, limit: int = 500) -> tuple[TrajectoryFacts, ...]:
        return await self._source.trajectories(limit)

    async def trajectory(self, trajectory_id: str) -> Episode:
        return await self._source.trajectory(trajectory_id)

    async def close(self) -> None:
        await self._source.close()
