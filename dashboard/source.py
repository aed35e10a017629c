"""Where the dashboard's values come from, and what its keys do: the seam between screens and the world.

The fleet's service (`fleet_source.py`), a run's folder (`run_source.py`), both at once (`sources.py`), and the demo
are sources. The application knows nothing else. A source for looking only is refused mutations by `ReadOnly`, not
by hidden keys.
"""

from __future__ import annotations

from typing import Protocol

from rocknroll.dashboard.snapshot import Description, Episode, EventFacts, GroupFacts, Snapshot, TrajectoryFacts


class SourceAway(Exception):
    """Nobody answers: the manager is not there (any more), or cannot be reached. It may come back."""


class SourceRefused(Exception):
    """The source answered, and does not do this: no such sandbox, no such part, a token that may not, read-only."""


class Source(Protocol):
    """Used by one event loop. Every method may raise `SourceAway`, and those about one thing `SourceRefused`."""

    title: str
    """What is looked at, in a few words: a socket, a URL, the name of a run."""

    async def snapshot(self) -> Snapshot:
        """Everything that is shown at a glance; costs one request, however many sandboxes there are.

        Raises:
            SourceAway: there is neither a fleet nor a run to show.
        """

    async def describe(self, sandbox_id: str) -> Description:
        """One sandbox: its row, `spec`, `events` (newest last) and `output`."""

    async def logs(self, sandbox_id: str) -> str:
        """What its processes printed last."""

    async def events(self, after: int = 0, limit: int = 1_000) -> tuple[EventFacts, ...]:
        """Events above the number `after`, oldest first; with 0 the newest `limit`."""

    async def restart(self, sandbox_id: str) -> None:
        """A fresh instance, out of quarantine if need be; a lease on it is lost."""

    async def remove(self, sandbox_id: str) -> None:
        """End it and keep its place empty until a restart; a lease on it is lost."""

    def shell_command(self, sandbox_id: str) -> tuple[str, ...]:
        """The command that opens a shell in it."""

    async def groups(self, limit: int = 500) -> tuple[GroupFacts, ...]:
        """The newest groups of the run, newest first."""

    async def trajectories(self, limit: int = 500) -> tuple[TrajectoryFacts, ...]:
        """The newest trajectories of the run, newest first."""

    async def trajectory(self, trajectory_id: str) -> Episode:
        """One of them, turn by turn."""

    async def close(self) -> None:
        """Give back connections. Idempotent."""
