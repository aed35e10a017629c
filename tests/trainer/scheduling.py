"""Tasks, episodes and the laws of the scheduler's events, for the tests of the scheduler and of the simulator."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from rocknroll.envs.text import Task
from rocknroll.trainer.rollout.events import (
    Aborted,
    BatchTaken,
    Episode,
    Event,
    Failed,
    GroupDropped,
    GroupFiltered,
    GroupRequeued,
    Kept,
    Started,
)
from rocknroll.trainer.rollout.scheduler import Batch, Scheduler, SchedulerOptions
from rocknroll.trainer.rollout.tasks import TaskOrder
from rocknroll.trainer.trajectory import Outcome, Trajectory, Turn

TASKS = [Task(id=f"t{i}", kind="k") for i in range(7)]


def played(
    episode: Episode, version: int, outcome: Outcome = Outcome.COMPLETED, reward: float | None = None
) -> Trajectory:
    """A trajectory of one action token, sampled at `version`; by default the members of a group differ in reward."""
    return Trajectory(
        id=episode.id,
        group_id=f"g{episode.group}",
        task_id=episode.task.id,
        task_kind="k",
        token_ids=np.array([1, 2], dtype=np.int32),
        action_mask=np.array([False, True]),
        logprobs=np.zeros(2, dtype=np.float32),
        versions=np.array([-1, version], dtype=np.int32),
        turns=(Turn(1, 2, float(episode.member) if reward is None else reward, True),),
        outcome=outcome,
        success=True,
    )


def new_scheduler(options: SchedulerOptions) -> Scheduler:
    """One that has not begun; its task order is the same for all options."""
    return Scheduler(TaskOrder(TASKS, seed=3), options)


def make(num_groups: int = 2, group_size: int = 2, async_ratio: float = 0.0, **options: Any) -> Scheduler:
    return new_scheduler(SchedulerOptions(num_groups, group_size, async_ratio, **options))


def start_all(scheduler: Scheduler) -> list[Episode]:
    """Everything that may start now."""
    return list(iter(scheduler.next_episode, None))


def finish(scheduler: Scheduler, episodes: Iterable[Episode], version: int = 0) -> None:
    for episode in episodes:
        scheduler.finished(episode, played(episode, version))


def of_group(episodes: Iterable[Episode], *groups: int) -> list[Episode]:
    return [episode for episode in episodes if episode.group in groups]


def groups_of(episodes: Iterable[Episode]) -> list[int]:
    """The groups of `episodes`, in order of appearance."""
    return list(dict.fromkeys(episode.group for episode in episodes))


def lose(scheduler: Scheduler, *episodes: Episode) -> None:
    """They are lost to infrastructure."""
    for episode in episodes:
        scheduler.finished(episode, played(episode, 0, Outcome.INFRA_ERROR))


def taken(scheduler: Scheduler) -> list[str]:
    """Names of the groups of the batch that is handed out now."""
    batch = scheduler.take_batch()
    assert batch is not None
    return [group.id for group in batch.groups]


class Laws:
    """Hears every event and batch of a run, and asserts what must hold at all times."""

    def __init__(self, options: SchedulerOptions, *, engines_lag: bool = False) -> None:
        """`engines_lag`: tokens may be older than the scheduler was told, so that even a protected group can lose."""
        self._options = options
        self._max_losses = math.inf if engines_lag else 1 if options.tail_batching else options.max_requeues
        self._bound = options.pacing.bound
        self.playing: dict[str, Episode] = {}
        self.kept: dict[str, Trajectory] = {}
        """Kept trajectories whose group has not ended yet."""
        self.open: set[int] = set()
        """Groups that started and have neither ended nor been requeued."""
        self.requeued: dict[int, int] = {}
        """Losses of each group."""
        self.started: set[int] = set()
        self.ended: dict[int, str] = {}
        self.batch_of: dict[int, int] = {}

    def hear(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case Started(episode):
                    assert episode.group not in self.ended, "a group that has ended plays no more"
                    assert episode.id not in self.playing and episode.id not in self.kept
                    self.playing[episode.id] = episode
                    self.started.add(episode.group)
                    self.open.add(episode.group)
                case Kept(episode, trajectory):
                    del self.playing[episode.id]
                    self.kept[episode.id] = trajectory
                case Failed(episode) | Aborted(episode):
                    del self.playing[episode.id]
                case GroupRequeued(group, _, discarded):
                    self.requeued[group] = self.requeued.get(group, 0) + 1
                    assert self.requeued[group] <= self._max_losses, "no group loses more often than it may"
                    self._end(group, discarded)
                case GroupFiltered(group, discarded) | GroupDropped(group, discarded):
                    self.ended[group] = type(event).__name__
                    self._end(group, discarded)
                case BatchTaken(batch, groups):
                    for members in groups:
                        (group,) = {self.kept[name].group_id for name in members}
                        index = int(group.removeprefix("g"))
                        assert index not in self.ended, "no group is trained on twice"
                        self.ended[index] = "taken"
                        self.batch_of[index] = batch
                        self._end(index, members)

    def take(self, batch: Batch) -> None:
        """`batch` was handed out; its event has been heard."""
        assert len(batch.groups) == self._options.num_groups
        for group in batch.groups:
            assert len(group.trajectories) == self._options.group_size
            members = [int(t.id.split(".")[1]) for t in group.trajectories]
            assert members == sorted(set(members)), "no member is missing or there twice"
            assert {t.group_id for t in group.trajectories} == {group.id}
            assert all(batch.index - t.oldest_version <= self._bound for t in group.trajectories)

    def interrupted(self) -> None:
        """The process died: what it played is played again under the same id."""
        self.playing.clear()

    def buffer(self, scheduler: Scheduler) -> None:
        """Complete, not yet taken groups stay within (1 + α)·N, and the scheduler's counts add up."""
        counts = scheduler.counts()
        assert counts["buffered"] <= (1 + self._options.async_ratio) * self._options.num_groups + 1e-9
        assert counts["playing"] == len(self.playing)
        assert counts["admitted"] == counts["open"] + counts["buffered"] + counts["consumed"]
        assert counts["requeued"] == sum(self.requeued.values())
        assert counts["filtered"] + counts["dropped"] + counts["consumed"] == len(self.ended)

    def _end(self, group: int, members: tuple[str, ...]) -> None:
        """The kept episodes of `group` end with it, all of them, and none is being played any more."""
        mine = {name for name, t in self.kept.items() if t.group_id == f"g{group}"}
        assert mine == set(members)
        assert not any(episode.group == group for episode in self.playing.values())
        for name in members:
            del self.kept[name]
        self.open.remove(group)
