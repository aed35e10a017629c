"""Which episode plays next, and which groups make the next batch: a pure state machine.

It owns no task, client or clock: the shell (`loop.py`) tells it what happened and carries out what
it answers; the simulator drives the same class. Invariants: a group is handed out for training once,
whole, and never staler than the pacing allows; every admitted group is consumed or reported as
dropped; an episode lost to infrastructure is played again before its group is given up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rocknroll.envs.text import Task
from rocknroll.trainer.rollout.staleness import Pacing
from rocknroll.trainer.rollout.tasks import TaskOrder
from rocknroll.trainer.trajectory import Group, Outcome, Trajectory


@dataclass(frozen=True)
class Episode:
    """One member of one group, to be played once."""

    group: int
    """Index of the group in the run's task order."""
    member: int
    attempt: int
    task: Task

    @property
    def id(self) -> str:
        return f"g{self.group}.{self.member}.{self.attempt}"


class Disposition(StrEnum):
    """What became of a finished episode."""

    KEPT = "kept"
    RETRIED = "retried"
    DROPPED = "dropped"
    """Its group ran out of retries and was given up; another task takes its place."""
    IGNORED = "ignored"
    """Its group had been given up before it finished."""


@dataclass
class _Open:
    """A group that was admitted and not yet consumed."""

    index: int
    task: Task
    start_version: int
    """Policy version at admission: no token of the group is older."""
    finished: dict[int, Trajectory] = field(default_factory=dict)
    failures: int = 0

    def complete(self, group_size: int) -> bool:
        return len(self.finished) == group_size


class Scheduler:
    """Admits groups in task order, paces them by version, collects their members into batches."""

    def __init__(self, order: TaskOrder, pacing: Pacing, *, group_size: int, infra_retries: int) -> None:
        if group_size < 1:
            raise ValueError(f"group_size is {group_size}; a group has at least one member")
        self._order = order
        self._pacing = pacing
        self._group_size = group_size
        self._infra_retries = infra_retries
        self._version = 0
        self._next_index = 0
        self._admitted = 0
        self._consumed: set[int] = set()
        self._dropped: set[int] = set()
        self._open: dict[int, _Open] = {}
        self._queue: deque[Episode] = deque()

    @property
    def version(self) -> int:
        return self._version

    def on_version(self, version: int) -> None:
        """The learner published new weights."""
        if version < self._version:
            raise ValueError(f"policy version went back from {self._version} to {version}")
        self._version = version

    def next_episode(self) -> Episode | None:
        """The episode to start in a free slot, or None while pacing holds admission back."""
        if not self._queue and self._admitted < self._pacing.quota(self._version):
            self._admit()
        return self._queue.popleft() if self._queue else None

    def finished(self, episode: Episode, trajectory: Trajectory) -> Disposition:
        """Record how an episode ended."""
        group = self._open.get(episode.group)
        if group is None:
            return Disposition.IGNORED
        if trajectory.outcome in (Outcome.COMPLETED, Outcome.TRUNCATED):
            group.finished[episode.member] = trajectory
            return Disposition.KEPT
        if trajectory.outcome is Outcome.INFRA_ERROR:
            group.failures += 1
        if group.failures > self._infra_retries:
            self._drop(group)
            return Disposition.DROPPED
        self._queue.appendleft(Episode(group.index, episode.member, episode.attempt + 1, group.task))
        return Disposition.RETRIED

    def take_batch(self) -> tuple[Group, ...] | None:
        """The groups to train on now, oldest first, or None while one that belongs in is unfinished."""
        ready = [g for g in self._open.values() if g.complete(self._group_size)]
        if len(ready) < self._pacing.num_groups:
            return None
        ready.sort(key=lambda g: (g.start_version, g.index))
        batch = ready[: self._pacing.num_groups]
        taken = {g.index for g in batch}
        left = [g.start_version for g in self._open.values() if g.index not in taken]
        if not self._pacing.may_wait(left, self._version):
            return None
        for group in batch:
            del self._open[group.index]
            self._consumed.add(group.index)
        return tuple(self._as_group(g) for g in batch)

    def counts(self) -> Mapping[str, int]:
        """Groups by where they stand, for the ledger and the status line."""
        complete = sum(g.complete(self._group_size) for g in self._open.values())
        return {
            "admitted": self._admitted,
            "open": len(self._open) - complete,
            "buffered": complete,
            "consumed": len(self._consumed),
            "dropped": len(self._dropped),
        }

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs so that it trains on no group twice and skips none."""
        done = self._consumed | self._dropped
        cursor = next(i for i in range(len(done) + 1) if i not in done)
        return {
            "version": self._version,
            "cursor": cursor,
            "consumed_after_cursor": sorted(i for i in self._consumed if i > cursor),
            "dropped": sorted(self._dropped),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Start again where `state_dict` was taken: open groups are played anew, in the same order."""
        self._version = int(state["version"])
        cursor = int(state["cursor"])
        self._dropped = set(state["dropped"])
        self._consumed = (set(range(cursor)) - self._dropped) | set(state["consumed_after_cursor"])
        self._admitted = len(self._consumed)
        self._next_index = cursor
        self._open.clear()
        self._queue.clear()

    def _admit(self) -> None:
        index = next(self._unseen())
        self._next_index = index + 1
        task = self._order[index]
        self._admitted += 1
        self._open[index] = _Open(index, task, self._version)
        self._queue.extend(Episode(index, member, 0, task) for member in range(self._group_size))

    def _unseen(self) -> Iterator[int]:
        index = self._next_index
        while True:
            if index not in self._consumed and index not in self._dropped:
                yield index
            index += 1

    def _drop(self, group: _Open) -> None:
        del self._open[group.index]
        self._dropped.add(group.index)
        self._admitted -= 1
        self._queue = deque(e for e in self._queue if e.group != group.index)

    def _as_group(self, group: _Open) -> Group:
        members = tuple(group.finished[m] for m in range(self._group_size))
        return Group(id=f"g{group.index}", task_id=group.task.id, trajectories=members)
