"""The order of training tasks: a seeded shuffle of each domain's split again and again, the domains interleaved.

A pure function of (tasks, ratios, seed, index): a resumed run asks for the same task at the same
index, in the same disguise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rocknroll.envs.text import Task
from rocknroll.trainer.ratio import Ratio, weight_at


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


@dataclass(frozen=True)
class Share:
    """A domain's part of a mixture."""

    order: TaskOrder
    ratio: Ratio


class MixedOrder:
    """Tasks of several domains, each in an order of its own, as many of each as its ratio says.

    Every group goes to the domain that is furthest behind what it is due; of equals to the first. So a
    domain is never more than one group ahead of its share of a prefix, and among n domains behind by at
    most 1/2 + 1/3 + … + 1/n, however the shares change (Adler et al., A proportionate fair scheduling
    rule with good worst-case performance, 2003); one whose ratio falls to 0 may still get what it is behind.
    What came before an index is computed once and kept.
    """

    def __init__(self, shares: Mapping[str, Share], num_groups: int) -> None:
        """`num_groups`: groups in a batch; the ratios at index i are those of iteration i // num_groups."""
        self._shares = tuple(shares.values())
        self._num_groups = num_groups
        self._due = [0.0] * len(self._shares)
        self._counts = [0] * len(self._shares)
        self._places: list[tuple[int, int]] = []
        """(domain, index within it) of every group so far."""

    def __getitem__(self, index: int) -> Task:
        while len(self._places) <= index:
            self._place_next()
        domain, position = self._places[index]
        return self._shares[domain].order[position]

    def _place_next(self) -> None:
        iteration = len(self._places) // self._num_groups
        weights = [weight_at(share.ratio, iteration) for share in self._shares]
        total = sum(weights)
        self._due = [due + weight / total for due, weight in zip(self._due, weights, strict=True)]
        behind = max(range(len(weights)), key=lambda domain: (self._due[domain], -domain))
        self._due[behind] -= 1.0
        self._places.append((behind, self._counts[behind]))
        self._counts[behind] += 1
