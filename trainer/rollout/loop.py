"""The asyncio shell around the scheduler: keeps every environment slot busy.

One worker task per slot asks the scheduler for an episode, plays it and reports back; there is no
turn barrier and no batch barrier. Evaluation episodes go first and never mix with training ones.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from rocknroll.envs.text import Task
from rocknroll.trainer.rollout.events import Episode, Failed, Surplus
from rocknroll.trainer.rollout.scheduler import Scheduler
from rocknroll.trainer.trajectory import Group, Outcome, Trajectory

FAILURE_WINDOW = 64
"""Episodes over which the infrastructure failure rate is judged: long enough that one killed sandbox
is noise, short enough that a broken environment stops the run within a minute."""


class RolloutFailed(Exception):
    """Too many episodes were lost to infrastructure; the text says to what."""


class Plays(Protocol):
    """What the loop needs of `episode.Player`."""

    async def play(
        self, episode_id: str, group_id: str, task: Task, *, temperature: float | None = None, seed: int | None = None
    ) -> Trajectory: ...


@dataclass
class _Evaluation:
    """Episodes of one evaluation, in task order."""

    id: str
    tasks: Sequence[Task]
    temperature: float
    waiting: deque[tuple[int, int]]
    """(task index, attempt) still to be played."""
    done: dict[int, Trajectory] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.done) == len(self.tasks)


@dataclass(frozen=True)
class _Job:
    """What one slot plays: a training episode, or one task of an evaluation."""

    source: Episode | _Evaluation
    index: int
    attempt: int


class RolloutLoop:
    """Plays training episodes for ever and evaluations on demand, `concurrency` at a time."""

    def __init__(
        self,
        scheduler: Scheduler,
        player: Plays,
        *,
        concurrency: int,
        seed: int,
        max_infra_error_rate: float,
    ) -> None:
        self._scheduler = scheduler
        self._player = player
        self._concurrency = concurrency
        self._seed = seed
        self._max_infra_error_rate = max_infra_error_rate
        self._changed = asyncio.Condition()
        self._training = False
        self._evaluation: _Evaluation | None = None
        self._evaluations = 0
        self._recent: deque[str] = deque(maxlen=FAILURE_WINDOW)
        self._workers: list[asyncio.Task[None]] = []
        self._playing = 0
        self._busy_since = time.perf_counter()
        self._busy_s = 0.0
        self._broken: Exception | None = None
        self.outcomes: Counter[str] = Counter()
        """Training episodes by outcome since the start, and infrastructure errors by cause (`infra_error/…`)."""

    async def start(self) -> None:
        """Start the workers; training episodes begin with `train`."""
        self._workers = [asyncio.create_task(self._work(), name=f"rollout-{i}") for i in range(self._concurrency)]

    async def stop(self) -> None:
        """Cancel what is being played."""
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    async def train(self) -> None:
        """Let training episodes start."""
        async with self._changed:
            self._training = True
            self._changed.notify_all()

    async def on_version(self, version: int) -> None:
        """New weights are in the engine: pacing may admit more."""
        async with self._changed:
            self._scheduler.on_version(version)
            self._changed.notify_all()

    async def next_batch(self) -> tuple[Group, ...]:
        """The next batch of groups, as soon as the scheduler has one.

        Raises:
            RolloutFailed: more episodes were lost than the recipe accepts, or a worker broke.
        """
        await self.train()
        async with self._changed:
            while True:
                self._raise_failure()
                batch = self._scheduler.take_batch()
                if batch is not None:
                    return batch.groups
                await self._changed.wait()

    async def evaluate(
        self, tasks: Sequence[Task], temperature: float, tell: Callable[[int], None] = lambda done: None
    ) -> list[Trajectory]:
        """Play each task once; infrastructure losses are played again. `tell` hears how many are done.

        Raises:
            RolloutFailed: as `next_batch`.
        """
        async with self._changed:
            while self._evaluation is not None:
                await self._changed.wait()
            self._evaluations += 1
            evaluation = _Evaluation(
                f"eval{self._evaluations}", tasks, temperature, deque((i, 0) for i in range(len(tasks)))
            )
            self._evaluation = evaluation
            self._changed.notify_all()
            try:
                while not evaluation.complete:
                    self._raise_failure()
                    await self._changed.wait()
                    tell(len(evaluation.done))
            finally:
                self._evaluation = None
                self._changed.notify_all()
        return [evaluation.done[i] for i in range(len(tasks))]

    def slot_busy_s(self) -> float:
        """Slot-seconds spent playing since the start."""
        self._account()
        return self._busy_s

    async def _work(self) -> None:
        try:
            while True:
                async with self._changed:
                    while (job := self._take()) is None:
                        await self._changed.wait()
                    self._account(+1)
                trajectory = await self._play(job)
                async with self._changed:
                    self._account(-1)
                    self._report(job, trajectory)
                    self._changed.notify_all()
        except Exception as failure:
            async with self._changed:
                self._broken = failure
                self._changed.notify_all()

    def _take(self) -> _Job | None:
        """What a free slot plays now: an evaluation first, then what the scheduler admits."""
        if self._evaluation is not None:
            waiting = self._evaluation.waiting
            return _Job(self._evaluation, *waiting.popleft()) if waiting else None
        episode = self._scheduler.next_episode() if self._training else None
        return _Job(episode, episode.member, episode.attempt) if episode is not None else None

    async def _play(self, job: _Job) -> Trajectory:
        if isinstance(job.source, _Evaluation):
            task, name, temperature = (
                job.source.tasks[job.index],
                f"{job.source.id}.{job.index}.{job.attempt}",
                job.source.temperature,
            )
            return await self._player.play(name, job.source.id, task, temperature=temperature, seed=job.index)
        episode = job.source
        return await self._player.play(episode.id, f"g{episode.group}", episode.task, seed=self._episode_seed(episode))

    def _report(self, job: _Job, trajectory: Trajectory) -> None:
        lost = trajectory.outcome is Outcome.INFRA_ERROR
        self._recent.append(trajectory.error if lost else "")
        if isinstance(job.source, _Evaluation):
            if trajectory.outcome in (Outcome.COMPLETED, Outcome.TRUNCATED):
                job.source.done[job.index] = trajectory
            else:
                job.source.waiting.append((job.index, job.attempt + 1))
            return
        self.outcomes[trajectory.outcome] += 1
        if lost:
            self.outcomes[f"infra_error/{trajectory.error.partition(':')[0]}"] += 1
        self._scheduler.finished(job.source, trajectory)
        for event in self._scheduler.drain():
            if isinstance(event, Failed) and event.retried:
                self.outcomes["retried"] += 1
            elif isinstance(event, Surplus):
                self.outcomes["surplus"] += 1

    def _episode_seed(self, episode: Episode) -> int:
        """Sampling seed of an episode: the same in a resumed run, different for every attempt."""
        path = (self._seed, episode.group, episode.member, episode.attempt)
        return int(np.random.SeedSequence(path).generate_state(1)[0])

    def _account(self, change: int = 0) -> None:
        now = time.perf_counter()
        self._busy_s += self._playing * (now - self._busy_since)
        self._busy_since = now
        self._playing += change

    def _raise_failure(self) -> None:
        if self._broken is not None:
            raise RolloutFailed(f"a rollout worker broke: {self._broken!r}") from self._broken
        causes = [error for error in self._recent if error]
        if len(self._recent) == FAILURE_WINDOW and len(causes) > self._max_infra_error_rate * FAILURE_WINDOW:
            last = "; ".join(dict.fromkeys(causes[-3:]))
            raise RolloutFailed(
                f"{len(causes)} of the last {FAILURE_WINDOW} episodes were lost to infrastructure, more than "
                f"rollout.max_infra_error_rate={self._max_infra_error_rate:g} accepts. Last causes: {last}"
            )
