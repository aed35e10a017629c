"""The order of training tasks: a seeded shuffle of the split, again and again.

A pure function of (tasks, seed, index): a resumed run asks for the same task at the same index, in
the same disguise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rocknroll.envs.text import Task


class TaskOrder:
    """Endless sequence of tasks; every task comes once before any comes again."""

    def __init__(
        self, tasks: Sequence[Task], seed: int, disguise: Callable[[Task, int], Task] = lambda task, seed: task
    ) -> None:
        """`disguise`: how a visit shows a task, given a seed of its own (`Family.disguise_task`)."""
        if not tasks:
            raise ValueError("there is no task to play: the split is empty")
        self._tasks = tasks
        self._seed = seed
        self._disguise = disguise
        self._permutation = lru_cache(maxsize=2)(self._shuffle)

    def __getitem__(self, index: int) -> Task:
        epoch, position = divmod(index, len(self._tasks))
        task = self._tasks[int(self._permutation(epoch)[position])]
        return self._disguise(task, int(np.random.SeedSequence([self._seed, index]).generate_state(1)[0]))

    def _shuffle(self, epoch: int) -> NDArray[np.int64]:
        return np.random.default_rng([self._seed, epoch]).permutation(len(self._tasks))
