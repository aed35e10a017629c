"""A group between its admission and its batch: which members are queued, being played, kept or given up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rocknroll.envs.text import Task
from rocknroll.trainer.rollout.events import Episode
from rocknroll.trainer.rollout.rounds import RoundKind
from rocknroll.trainer.trajectory import NO_VERSION, Group, Trajectory

FLAT = 1e-9
"""Returns that differ by no more are equal: they are sums of the same few rewards, rounded differently."""


class Candidate(NamedTuple):
    """A group that is to be admitted: a new one, or one that lost a race and what it has behind it."""

    group: int
    losses: int = 0
    retries: int = 0
    attempt: int = 0
    """First attempt number that no member has used."""


class Playing(NamedTuple):
    episode: Episode
    version: int
    """Current when it was handed out: no token of it is older."""


@dataclass
class OpenGroup:
    """Mutable; owned by the scheduler. A launched member is queued, in `playing`, in `kept`, or lost for good."""

    index: int
    task: Task
    losses: int
    retries: int
    engine: int
    attempts: list[int]
    """Attempt number of each launched member."""
    playing: dict[int, Playing] = field(default_factory=dict)
    kept: dict[int, Trajectory] = field(default_factory=dict)
    _oldest_kept: int | None = None

    @property
    def name(self) -> str:
        return f"g{self.index}"

    def start(self) -> int | None:
        """Version of the oldest token that the group can hold, or None while none of its members has started."""
        versions = [playing.version for playing in self.playing.values()]
        if self._oldest_kept is not None:
            versions.append(self._oldest_kept)
        return min(versions, default=None)

    def keep(self, member: int, trajectory: Trajectory) -> None:
        """`member` finished; a trajectory in which nothing was sampled does not age."""
        self.kept[member] = trajectory
        oldest = trajectory.oldest_version
        if oldest != NO_VERSION and (self._oldest_kept is None or oldest < self._oldest_kept):
            self._oldest_kept = oldest

    def flat(self) -> bool:
        """True if its members do not differ in return, so that their advantages vanish."""
        returns = [t.reward for t in self.kept.values()]
        return max(returns) - min(returns) <= FLAT

    def kept_ids(self) -> tuple[str, ...]:
        return tuple(self.episode(member).id for member in sorted(self.kept))

    def lost(self) -> Candidate:
        """The group after it lost a race: to be played anew, every member under an attempt of its own."""
        return Candidate(self.index, self.losses + 1, self.retries, max(self.attempts) + 1)

    def as_group(self, round_kind: RoundKind) -> Group:
        members = tuple(self.kept[member] for member in sorted(self.kept))
        return Group(id=self.name, task_id=self.task.id, trajectories=members, round_kind=round_kind)

    def state_dict(self) -> dict[str, Any]:
        return {
            "index": self.index,
            "losses": self.losses,
            "retries": self.retries,
            "engine": self.engine,
            "attempts": list(self.attempts),
            "kept": sorted(self.kept),
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any], task: Task, trajectories: Mapping[str, Trajectory]) -> OpenGroup:
        """Raises ValueError when a kept trajectory is not among `trajectories`."""
        group = cls(
            index=state["index"],
            task=task,
            losses=state["losses"],
            retries=state["retries"],
            engine=state["engine"],
            attempts=list(state["attempts"]),
        )
        for member in state["kept"]:
            name = group.episode(member).id
            if name not in trajectories:
                raise ValueError(
                    f"trajectory {name} was kept for its group but is not among those restored, so the group cannot"
                    " be trained whole; restore the scheduler together with the ledger that it was recorded in"
                )
            group.keep(member, trajectories[name])
        return group

    def episode(self, member: int, engine: int = 0) -> Episode:
        """The current attempt of `member`."""
        return Episode(self.index, member, self.attempts[member], self.task, engine)
