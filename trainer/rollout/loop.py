"""The asyncio shell around the scheduler: keeps every environment slot busy.

One task per episode: the scheduler says which may start, the loop plays it, reports back, and cancels
what the scheduler aborts; there is no turn barrier and no batch barrier. Everything that the
scheduler says has happened goes to the journal before anything else happens. Evaluation episodes go
first and never mix with training ones.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from rocknroll.envs.text import Task
from rocknroll.trainer.rollout.evaluation import Evaluation
from rocknroll.trainer.rollout.events import (
    Aborted,
    Episode,
    Event,
    Failed,
    GroupDropped,
    GroupFiltered,
    GroupRequeued,
    Kept,
    Surplus,
)
from rocknroll.trainer.rollout.faults import HOPELESS, FailureWindow
from rocknroll.trainer.rollout.ledger_file import LedgerError
from rocknroll.trainer.rollout.scheduler import Batch, Scheduler
from rocknroll.trainer.trajectory import Group, Trajectory


class RolloutFailed(Exception):
    """Too many episodes were lost to infrastructure; the text says to what."""


class Plays(Protocol):
    """What the loop needs of `episode.Player`."""

    async def play(
        self,
        episode_id: str,
        group_id: str,
        task: Task,
        *,
        temperature: float | None = None,
        seed: int | None = None,
        engine: int = 0,
        leave: Callable[[], None] = lambda: None,
    ) -> Trajectory:
        """Play one episode; `leave` is called when it needs no environment any more."""


class Journal(Protocol):
    """Where it is written down what happened; `ledger.Ledger` is one."""

    def record(self, events: Sequence[Event], state: Mapping[str, Any]) -> None:
        """Events since the last call, and the scheduler's state behind them."""


class _Play:
    """One episode under way."""

    def __init__(self, finish: Callable[[Trajectory], None]) -> None:
        self.finish = finish
        """Hears of the trajectory."""
        self.holds_slot = True
        self.task: asyncio.Task[Trajectory]


class RolloutLoop:
    """Plays training episodes for ever and evaluations on demand, `concurrency` at a time."""

    def __init__(
        self,
        scheduler: Scheduler,
        player: Plays,
        *,
        concurrency: int,
        seed: int,
        failures: FailureWindow,
        journal: Journal | None = None,
        engines: int = 1,
    ) -> None:
        """`engines`: how many evaluation episodes are spread over; the scheduler places training ones."""
        self._scheduler = scheduler
        self._player = player
        self._concurrency = concurrency
        self._seed = seed
        self._failures = failures
        self._journal = journal
        self._engines = engines
        self._running = False
        self._training = False
        self._evaluations: list[Evaluation] = []
        self._evaluations_begun = 0
        self._plays: dict[str, _Play] = {}
        self._ending: set[asyncio.Task[Trajectory]] = set()
        """Cancelled, and still giving back what they hold."""
        self._occupied = 0
        self._busy_since = time.perf_counter()
        self._busy_s = 0.0
        self._slots_s = 0.0
        self._news = asyncio.Event()
        self._broken: BaseException | None = None
        self.outcomes: Counter[str] = Counter()
        """Training episodes and groups by what became of them since the start: `completed`, `truncated`,
        `infra_error` and by cause `infra_error/…`, `retried`, `aborted` and `aborted/…`, `groups_requeued`, …"""
        self.finished = 0
        """Episodes that came to an end of their own since the start, those of evaluations included."""
        self.lost: Counter[str] = Counter()
        """Episodes lost to infrastructure by cause, those of evaluations included."""

    async def start(self) -> None:
        """Begin to play; training episodes begin with `train`."""
        self._running = True
        self._settle()

    async def stop(self) -> None:
        """Cancel what is being played."""
        self._running = False
        for play in self._plays.values():
            play.task.cancel()
        await asyncio.gather(*(play.task for play in self._plays.values()), *self._ending, return_exceptions=True)

    async def train(self) -> None:
        """Let training episodes start."""
        self._training = True
        self._settle()

    async def on_version(self, version: int) -> None:
        """New weights are in the engine: pacing may admit more."""
        self._scheduler.on_version(version)
        self._settle()

    async def next_batch(self, version: int) -> Batch:
        """The groups that policy `version` is to train on, as soon as the scheduler has them.

        Raises:
            RolloutFailed: more episodes were lost than the recipe accepts, or something broke.
            LedgerError: what happened could not be written down.
        """
        self._expect(version)
        await self.train()
        while True:
            self._raise_failure()
            batch = self._scheduler.take_batch()
            self._settle()
            if batch is not None:
                self._raise_failure()  # what the journal does not have must not be trained on
                return batch
            await self._news.wait()

    async def ready_groups(self, version: int, seen: int) -> Sequence[Group]:
        """Complete groups of batch `version` beyond the first `seen`, in order of completion; waits for one.

        Raises:
            RolloutFailed: as `next_batch`.
        """
        self._expect(version)
        await self.train()
        while True:
            self._raise_failure()
            ready = self._scheduler.ready_groups()
            if len(ready) > seen:
                return ready[seen:]
            await self._news.wait()

    async def evaluate(
        self, tasks: Sequence[Task], temperature: float, tell: Callable[[int], None] = lambda done: None
    ) -> list[Trajectory]:
        """Play each task once; infrastructure losses are played again. `tell` hears how many are done.

        Raises:
            RolloutFailed: as `next_batch`, or one task is lost again and again.
        """
        self._evaluations_begun += 1
        evaluation = Evaluation(f"eval{self._evaluations_begun}", tasks, temperature)
        self._evaluations.append(evaluation)
        self._settle()
        try:
            while not evaluation.complete:
                self._raise_failure()
                if hopeless := evaluation.hopeless:
                    raise RolloutFailed(hopeless)
                await self._news.wait()
                tell(evaluation.done)
        finally:
            self._evaluations.remove(evaluation)
            self._settle()
        return evaluation.trajectories()

    def resize(self, concurrency: int) -> None:
        """Play so many at a time from now on; what is being played goes on to its end."""
        self._occupy(0)
        self._concurrency = concurrency
        self._settle()

    def demand(self) -> int:
        """Episodes that play, or would if there were slots for all of them."""
        waiting = sum(len(evaluation.waiting) for evaluation in self._evaluations)
        return self._occupied + waiting + (self._scheduler.backlog() if self._training else 0)

    def slot_busy_s(self) -> float:
        """Slot-seconds spent playing since the start."""
        self._occupy(0)
        return self._busy_s

    def slots_s(self) -> float:
        """Slot-seconds that there were since the start, those included that are no more wanted and still played in."""
        self._occupy(0)
        return self._slots_s

    def fail(self, failure: BaseException) -> None:
        """End the run: something broke that it cannot do without."""
        self._broken = self._broken or failure
        self._settle()

    def _settle(self) -> None:
        """After every change: start what may start, write down what happened, cut off what was aborted, wake
        who waits."""
        try:
            while self._running and self._broken is None:
                self._fill()
                if not self._carry_out():
                    break
        except Exception as failure:
            self._broken = failure
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _fill(self) -> None:
        """Give free slots work: evaluations first, then what the scheduler admits."""
        while self._occupied < self._concurrency:
            waiting = next((evaluation for evaluation in self._evaluations if evaluation.waiting), None)
            if waiting is not None:
                self._play_evaluation(waiting)
            elif not self._training or (episode := self._scheduler.next_episode()) is None:
                return
            else:
                self._play_training(episode)

    def _play_evaluation(self, evaluation: Evaluation) -> None:
        index, attempt = evaluation.waiting.popleft()
        self._launch(
            f"{evaluation.id}.{index}.{attempt}",
            evaluation.id,
            evaluation.tasks[index],
            partial(evaluation.finished, index, attempt),
            temperature=evaluation.temperature,
            seed=index,
            engine=index % self._engines,
        )

    def _play_training(self, episode: Episode) -> None:
        self._launch(
            episode.id,
            f"g{episode.group}",
            episode.task,
            partial(self._scheduler.finished, episode),
            seed=self._episode_seed(episode),
            engine=episode.engine,
        )

    def _launch(self, name: str, group: str, task: Task, finish: Callable[[Trajectory], None], **settings: Any) -> None:
        play = self._plays[name] = _Play(finish)
        leave = partial(self._leave, play)
        played = self._player.play(name, group, task, leave=leave, **settings)
        play.task = asyncio.create_task(played, name=name)
        play.task.add_done_callback(partial(self._ended, name, play))
        self._occupy(+1)

    def _leave(self, play: _Play) -> None:
        """The episode needs its slot no more; what is left to do needs no environment."""
        if play.holds_slot:
            self._free(play)
            self._settle()

    def _free(self, play: _Play) -> None:
        if play.holds_slot:
            play.holds_slot = False
            self._occupy(-1)

    def _ended(self, name: str, play: _Play, task: asyncio.Task[Trajectory]) -> None:
        self._free(play)
        self._ending.discard(task)
        if self._plays.get(name) is play:
            del self._plays[name]
        if not task.cancelled():
            failure = task.exception()
            if failure is not None:
                self._broken = self._broken or failure
            elif self._running:
                self._report(play, task.result())
        self._settle()

    def _report(self, play: _Play, trajectory: Trajectory) -> None:
        self._failures.observe(trajectory)
        if trajectory.cause:
            self.lost[trajectory.cause] += 1
        else:
            self.finished += 1
        try:
            play.finish(trajectory)
        except Exception as failure:
            self._broken = failure

    def _carry_out(self) -> bool:
        """Write down what happened, then do what it asks for; True when that freed slots."""
        events = self._scheduler.drain()
        if not events:
            return False
        if self._journal is not None:
            self._journal.record(events, self._scheduler.state_dict())
        freed = False
        for event in events:
            self.outcomes.update(_counts(event))
            if isinstance(event, Aborted):
                freed |= self._cut_off(event.episode.id)
        return freed

    def _cut_off(self, name: str) -> bool:
        play = self._plays.pop(name, None)
        if play is None:
            return False  # it had not begun
        freed = play.holds_slot
        self._free(play)
        self._ending.add(play.task)
        play.task.cancel()
        return freed

    def _episode_seed(self, episode: Episode) -> int:
        """Sampling seed of an episode: the same in a resumed run, different for every attempt."""
        path = (self._seed, episode.group, episode.member, episode.attempt)
        return int(np.random.SeedSequence(path).generate_state(1)[0])

    def _occupy(self, change: int) -> None:
        now = time.perf_counter()
        self._busy_s += self._occupied * (now - self._busy_since)
        self._slots_s += max(self._occupied, self._concurrency) * (now - self._busy_since)
        self._busy_since = now
        self._occupied += change

    def _expect(self, version: int) -> None:
        if version != self._scheduler.batches_taken:
            raise ValueError(f"batch {version} was asked for, and the next one is {self._scheduler.batches_taken}")

    def _raise_failure(self) -> None:
        if isinstance(self._broken, LedgerError):
            raise self._broken
        if isinstance(self._broken, HOPELESS):
            raise RolloutFailed(f"{type(self._broken).__name__}: {self._broken}") from self._broken
        if self._broken is not None:
            text = "".join(traceback.format_exception(self._broken))
            raise RolloutFailed(f"the rollouts broke, which is a fault of this program:\n{text}") from self._broken
        if verdict := self._failures.verdict():
            raise RolloutFailed(verdict)


def _counts(event: Event) -> dict[str, int]:
    """What an event adds to the outcomes."""
    match event:
        case Kept(_, trajectory):
            return {trajectory.outcome: 1}
        case Failed(_, trajectory, retried):
            outcome = str(trajectory.outcome)
            return {outcome: 1, f"{outcome}/{trajectory.cause}": 1, "retried": int(retried)}
        case Aborted(_, why):
            return {"aborted": 1, f"aborted/{why}": 1}
        case Surplus():
            return {"surplus": 1}
        case GroupRequeued():
            return {"groups_requeued": 1}
        case GroupFiltered():
            return {"groups_filtered": 1}
        case GroupDropped():
            return {"groups_dropped": 1}
    return {}
