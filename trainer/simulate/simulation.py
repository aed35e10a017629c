"""Drives the production scheduler with simulated environments, engines and a learner, on a virtual clock.

`simulate(scheduler, world, batches)` answers in a second what a run of hours would show: how long batches take,
how stale they are, which side waits. The shell that it stands in for is `rollout.loop`; the scheduler is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import numpy as np

from rocknroll.trainer.rollout.events import Aborted, Episode, Event
from rocknroll.trainer.rollout.scheduler import Batch, Scheduler
from rocknroll.trainer.simulate.clock import Clock, Job, Process, Signal, Slots
from rocknroll.trainer.simulate.report import BatchReport, Report
from rocknroll.trainer.simulate.world import Luck, World
from rocknroll.trainer.trajectory import NO_VERSION, Outcome, Trajectory, Turn

Hear = Callable[[Sequence[Event]], None]


def simulate(scheduler: Scheduler, world: World, batches: int, hear: Hear = lambda events: None) -> Report:
    """Collect and train `batches` batches. `hear` is told of the scheduler's events as they happen.

    Raises:
        Stuck: the run came to a halt before that.
    """
    return Simulation(scheduler, world, hear).run(batches)


class Simulation:
    """A simulated run; may be run on, and its rollout process may be killed, between batches or by `hear`."""

    def __init__(self, scheduler: Scheduler, world: World, hear: Hear = lambda events: None) -> None:
        self._scheduler = scheduler
        self._world = world
        self._hear = hear
        self._clock = Clock()
        self._changed = Signal(self._clock)
        self._engines = [Slots(self._clock, world.engine_slots) for _ in range(scheduler.options.engines)]
        self._environments = Slots(self._clock, world.slots)
        self._free = world.slots
        self._jobs: dict[str, Job] = {}
        self._batches: list[BatchReport] = []
        self._events: Counter[str] = Counter()

    @property
    def scheduler(self) -> Scheduler:
        return self._scheduler

    def run(self, batches: int) -> Report:
        """Collect and train `batches` more batches."""
        self._fill()
        self._clock.run(self._clock.start(self._learn(batches)))
        return Report(
            batches=tuple(self._batches),
            elapsed_s=self._clock.now_s,
            environment_utilisation=self._environments.utilisation(),
            engine_utilisation=float(np.mean([engine.utilisation() for engine in self._engines])),
            events=dict(self._events),
        )

    def replace(self, scheduler: Scheduler) -> None:
        """The rollout process died and was started again with `scheduler`: what was being played is gone."""
        for job in self._jobs.values():
            self._clock.cancel(job)
        self._jobs.clear()
        self._free = self._world.slots
        self._scheduler = scheduler
        self._fill()
        self._changed.fire()

    def _learn(self, batches: int) -> Process:
        for _ in range(batches):
            asked_s = self._clock.now_s
            while (batch := self._scheduler.take_batch()) is None:
                yield self._changed
            self._record(batch, self._clock.now_s - asked_s)
            self._settle()
            yield self._world.train_s(Random(f"{self._world.seed}/train/{batch.index}"))
            self._scheduler.on_version(batch.index + 1)
            self._settle()

    def _record(self, batch: Batch, waited_s: float) -> None:
        played = [t for group in batch.groups for t in group.trajectories]
        self._batches.append(
            BatchReport(
                index=batch.index,
                taken_s=self._clock.now_s,
                waited_s=waited_s,
                groups=tuple(group.id for group in batch.groups),
                staleness=tuple(batch.index - t.oldest_version for t in played),
                turns=tuple(len(t.turns) for t in played),
                rewards=tuple(t.reward for t in played),
                round_kind=batch.groups[0].round_kind,
            )
        )

    def _settle(self) -> None:
        """Carry out what the scheduler decided, start what it admits, and tell the learner."""
        self._carry_out()
        self._fill()
        self._changed.fire()

    def _carry_out(self) -> None:
        events = self._scheduler.drain()
        for event in events:
            self._events[type(event).__name__] += 1
            if isinstance(event, Aborted) and (job := self._jobs.pop(event.episode.id, None)) is not None:
                self._free += 1
                self._clock.cancel(job)
        self._hear(events)

    def _fill(self) -> None:
        while self._free and (episode := self._scheduler.next_episode()) is not None:
            self._free -= 1
            self._jobs[episode.id] = self._clock.start(self._run(episode))
        self._carry_out()

    def _run(self, episode: Episode) -> Process:
        """One environment slot, for as long as it plays `episode`."""
        yield self._environments
        try:
            trajectory = yield from self._play(episode)
        finally:
            self._environments.release()
        del self._jobs[episode.id]
        self._free += 1
        self._scheduler.finished(episode, trajectory)
        self._settle()

    def _play(self, episode: Episode) -> Process:
        """Turn after turn; the result is the trajectory."""
        luck = self._world.luck(episode.group, episode.member, episode.attempt)
        engine = self._engines[episode.engine]
        ends_s = self._clock.now_s + self._world.episode_timeout_s
        versions: list[int] = []
        for turn in range(luck.turns):
            yield engine
            try:
                versions.append(self._scheduler.version)
                yield self._world.generate_s(luck.dice)
            finally:
                engine.release()
            step_s = self._world.step_s(luck.dice) * (self._world.slow_factor if luck.slow else 1.0)
            if turn == luck.hangs_at or self._clock.now_s + step_s > ends_s:
                yield max(0.0, ends_s - self._clock.now_s)
                return _trajectory(episode, versions, luck, "episode_timeout")
            yield step_s
            if turn == luck.fails_at:
                return _trajectory(episode, versions, luck, "env_error")
        return _trajectory(episode, versions, luck)


def _trajectory(episode: Episode, versions: Sequence[int], luck: Luck, cause: str = "") -> Trajectory:
    """One observation token and one action token a turn; reward 1 for success at the end."""
    turns = len(versions)
    won = luck.success and not cause
    return Trajectory(
        id=episode.id,
        group_id=f"g{episode.group}",
        task_id=episode.task.id,
        task_kind=episode.task.kind,
        token_ids=np.zeros(2 * turns, dtype=np.int32),
        action_mask=np.tile([False, True], turns),
        logprobs=np.zeros(2 * turns, dtype=np.float32),
        versions=np.array([v for version in versions for v in (NO_VERSION, version)], dtype=np.int32),
        turns=tuple(Turn(2 * i + 1, 2 * i + 2, float(won and i == turns - 1), True) for i in range(turns)),
        outcome=Outcome.INFRA_ERROR if cause else Outcome.COMPLETED,
        success=won,
        error=f"simulated {cause}" if cause else "",
        cause=cause,
    )
