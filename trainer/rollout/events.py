"""What a scheduler says has happened: one list that the shell carries out, the ledger records and tests balance.

Every episode that is `Started` ends in exactly one of `Kept`, `Failed` or `Aborted`; a kept one's group ends in
exactly one `BatchTaken`, `GroupRequeued`, `GroupFiltered` or `GroupDropped`. `Surplus` ends nothing: it says that
an episode which had been aborted finished all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rocknroll.envs.text import Task
from rocknroll.trainer.trajectory import Trajectory


@dataclass(frozen=True)
class Episode:
    """One member of one group, to be played once."""

    group: int
    """Index of the group in the run's task order."""
    member: int
    attempt: int
    task: Task
    engine: int = 0
    """Which of the run's engines serves it."""

    @property
    def id(self) -> str:
        return f"g{self.group}.{self.member}.{self.attempt}"


class Why(StrEnum):
    """Why an episode or a group was cut off."""

    REDUNDANT = "redundant"
    """Enough others finished first."""
    STALE = "stale"
    """It could not be trained on within the asynchronous ratio any more."""
    DROPPED = "dropped"
    """Its group ran out of retries and was given up."""
    INTERRUPTED = "interrupted"
    """The run ended (or was killed) while it was being played."""


@dataclass(frozen=True)
class Started:
    episode: Episode
    version: int


@dataclass(frozen=True)
class Kept:
    """It finished with a reward and belongs to its group."""

    episode: Episode
    trajectory: Trajectory


@dataclass(frozen=True)
class Failed:
    """It was lost to infrastructure; `trajectory.cause` says to what. `retried`: the member is played again."""

    episode: Episode
    trajectory: Trajectory
    retried: bool


@dataclass(frozen=True)
class Aborted:
    """It was cut off. If it is being played the shell stops it now; its slot is free from here on."""

    episode: Episode
    why: Why


@dataclass(frozen=True)
class Surplus:
    """It finished after it was aborted: nobody needs it."""

    episode: Episode


@dataclass(frozen=True)
class GroupRequeued:
    """The group lost a race and is played again later; what its members had finished is thrown away."""

    group: int
    why: Why
    discarded: tuple[str, ...]
    """Ids of kept episodes that are thus thrown away."""


@dataclass(frozen=True)
class GroupFiltered:
    """Dynamic sampling set the group aside: its members do not differ."""

    group: int
    discarded: tuple[str, ...]


@dataclass(frozen=True)
class GroupDropped:
    """The group ran out of retries; another task takes its place."""

    group: int
    discarded: tuple[str, ...]


@dataclass(frozen=True)
class BatchTaken:
    """Groups were handed out for training, in this order."""

    batch: int
    """Index of the batch, which is the policy version that trains on it."""
    episodes: tuple[tuple[str, ...], ...]
    """Ids of the members of each group."""
    round_kind: str = ""


Event = Started | Kept | Failed | Aborted | Surplus | GroupRequeued | GroupFiltered | GroupDropped | BatchTaken
