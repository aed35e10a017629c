"""Rewards from the recipe's own function, computed in worker processes while rollouts go on.

Evaluations queue for `workers` processes; one that takes longer than its task's adaptive timeout is
killed with its process and scores 0. An exception or a dead worker is RewardFailed: the episode is
lost to infrastructure, never rewarded with a number that nobody computed.
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import os
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from pebble import ProcessExpired, ProcessPool

from rocknroll.envs.reasoning.timeouts import AdaptiveTimeouts
from rocknroll.envs.text import Task
from rocknroll.trainer.errors import RecipeError
from rocknroll.trainer.rewards.evaluation import Evaluated, complaint, evaluate, prepare

T = TypeVar("T")

REMEMBERED = 1024
"""Evaluations over which quantiles of their duration are taken."""
IMPORT_TIMEOUT_S = 120.0
"""For a worker to start and to import the function."""


class RewardFailed(Exception):
    """A reward could not be computed, for a reason that is not the policy's."""


@dataclass(frozen=True)
class TextTurn:
    """One turn of an episode as text."""

    observation: str
    """What the policy read before it acted."""
    action: str
    reward: float
    """From the environment."""


@dataclass(frozen=True)
class EpisodeText:
    """A finished episode as text."""

    turns: tuple[TextTurn, ...]
    success: bool


@dataclass(frozen=True)
class Reward:
    """What an episode is worth beside what the environment gave."""

    value: float
    correct: bool = False
    timed_out: bool = False


class WorkerDied(Exception):
    """The worker of an evaluation ended before it did."""


class Workers(Protocol):
    """What evaluations run in, as many at once as there are workers, each of which has learnt the function."""

    def submit(self, call: Callable[..., T], *args: Any, timeout_s: float) -> asyncio.Future[T]:
        """Queue a call; time in the queue does not count.

        The future fails with TimeoutError, WorkerDied or ProcessExpired. One that is cancelled frees its worker.
        """

    async def close(self) -> None:
        """Kill all; safe to call twice."""


class Processes:
    """Workers that are processes of this machine, and end with this one."""

    def __init__(self, function: str, workers: int) -> None:
        self._pool = ProcessPool(
            max_workers=workers,
            initializer=prepare,
            initargs=(function, os.getpid()),
            # A fork would copy the trainer's threads and locks, and torch with them.
            context=multiprocessing.get_context("spawn"),
        )

    def submit(self, call: Callable[..., T], *args: Any, timeout_s: float) -> asyncio.Future[T]:
        return asyncio.wrap_future(self._pool.schedule(call, args=args, timeout=timeout_s))

    async def close(self) -> None:
        self._pool.stop()
        await asyncio.to_thread(self._pool.join)


class RewardWorkers:
    """Evaluations of one reward function; call `start` first, `close` last.

    Args:
        function: `package.module:function`.
        workers: evaluations that run at once.
        timeouts: how long each may take.
        pool: so many workers, which know the function; processes of this machine unless given.
    """

    def __init__(self, function: str, workers: int, timeouts: AdaptiveTimeouts, pool: Workers | None = None) -> None:
        self._function = function
        self._workers = workers
        self._timeouts = timeouts
        self._counts: Counter[str] = Counter()
        self._evaluations: set[asyncio.Future[Evaluated]] = set()
        self._closed = False
        self._durations_s: deque[float] = deque(maxlen=REMEMBERED)
        self._pool = pool or Processes(function, workers)

    async def start(self) -> None:
        """Start the workers and see that they know the function.

        Raises:
            RecipeError: they do not.
        """
        try:
            why = await self._pool.submit(complaint, timeout_s=IMPORT_TIMEOUT_S)
        except (TimeoutError, ProcessExpired, WorkerDied) as error:
            why = f"importing it ended with {type(error).__name__}: {error}"
        if why:
            await self.close()
            raise RecipeError(
                f"`reward.function` ({self._function}) cannot be used: {why}. Name a function that can be imported"
                " where you start `roll`, as `package.module:function`"
            )

    async def score(self, task: Task, episode: EpisodeText) -> Reward:
        """Queue the evaluation of a finished episode and return its reward; 0 if it took too long.

        Raises:
            RewardFailed: the function raised or returned no number, or its worker died.
        """
        try:
            evaluated = await self._evaluated(task, episode)
        except TimeoutError:
            self._counts["timeouts"] += 1
            return Reward(0.0, timed_out=True)
        except ProcessExpired as error:
            raise self._failed(task, f"its worker died (exit code {error.exitcode})") from error
        except WorkerDied as error:
            why = "the reward workers are closed" if self._closed else f"its worker died ({error})"
            raise self._failed(task, why) from error
        except (RuntimeError, asyncio.CancelledError) as error:
            if not self._closed:
                raise
            raise self._failed(task, "the reward workers are closed") from error
        return self._reward(task, evaluated)

    def metrics(self) -> dict[str, float]:
        """Counters `scored`, `timeouts`, `failures`; the present `queue`; quantiles of recent durations in seconds."""
        counts = {name: float(self._counts[name]) for name in ("scored", "timeouts", "failures")}
        queue = float(max(0, len(self._evaluations) - self._workers))
        return {**counts, "queue": queue, "p50_s": self._quantile(0.5), "p95_s": self._quantile(0.95)}

    def state_dict(self) -> dict[str, Any]:
        """JSON: what the timeouts have learnt."""
        return self._timeouts.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._timeouts.load_state_dict(state)

    async def close(self) -> None:
        """Kill the workers; evaluations under way fail. Safe to call twice."""
        self._closed = True
        closing = asyncio.ensure_future(self._pool.close())
        await asyncio.sleep(0)
        # A pool that is stopped fails its futures only where one of its threads meets the closed channel in time.
        for evaluation in self._evaluations:
            evaluation.cancel()
        await closing

    async def _evaluated(self, task: Task, episode: EpisodeText) -> Evaluated:
        timeout_s = self._timeouts.timeout_s(task.id)
        evaluation = self._pool.submit(evaluate, _plain(task, episode), timeout_s=timeout_s)
        self._evaluations.add(evaluation)
        try:
            return await evaluation
        finally:
            self._evaluations.discard(evaluation)

    def _reward(self, task: Task, evaluated: Evaluated) -> Reward:
        if evaluated.error:
            raise self._failed(task, evaluated.error)
        self._counts["scored"] += 1
        self._durations_s.append(evaluated.took_s)
        self._timeouts.evaluated(task.id, evaluated.took_s, evaluated.correct)
        return Reward(evaluated.value, evaluated.correct)

    def _failed(self, task: Task, why: str) -> RewardFailed:
        self._counts["failures"] += 1
        return RewardFailed(f"`reward.function` ({self._function}) gave no reward for {task.id}: {why}")

    def _quantile(self, share: float) -> float:
        """The smallest recent duration that at least `share` of them do not exceed; 0 before the first."""
        ordered: Sequence[float] = sorted(self._durations_s)
        return ordered[math.ceil(share * len(ordered)) - 1] if ordered else 0.0


def _plain(task: Task, episode: EpisodeText) -> dict[str, Any]:
    """The mapping that the function gets; plain values alone."""
    return {
        "task_id": task.id,
        "kind": task.kind,
        "options": dict(task.options),
        "turns": [vars(turn).copy() for turn in episode.turns],
        "success": episode.success,
    }
