"""What the rules of training read: rows of `metrics.jsonl`, and when something was finished last (pure)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median

from rocknroll.sandbox.alerts.rule import Reading
from rocknroll.trainer.alerts.rules import CHEATING, ENTROPY_COLLAPSE, STALENESS_PINNED, STALL
from rocknroll.trainer.recipe import Recipe

SUBJECT = "the run"
USUAL_OF = 10
"""Iterations whose median time is the usual one."""
TIMED = 3
"""So many must have been timed before their median counts alone: one or two say little on a machine with other work."""
SHORTEST_USUAL_S = 10.0
"""A pause of seconds between iterations of a second each (a checkpoint, another program on the machine) is no stall."""
PINNED_BATCHES = 5
PINNED_BOUND = 2
"""Asynchronous ratios up to 1 are not judged: of a run that overlaps well every trajectory is one version old."""
IDLE_SLOTS = 0.5
"""Share of the slots that stands idle where pacing, and not a lack of slots, keeps episodes from starting."""
SMOOTHED = 3
"""Batches whose median (of the entropy) or mean (of cheating) counts; one odd batch is no alert."""
LEAST_ENTROPY = 0.01
"""Nats. A policy that begins below it (a warm start on experts who never differ) has nothing to collapse from."""
SOLVED = 0.9
"""Success from which on a policy has reason to be sure of itself."""


class TrainingReader:
    """`rows`: those of an earlier session, where the run is gone on with."""

    def __init__(self, recipe: Recipe, rows: Sequence[Mapping[str, float]], now: float) -> None:
        self._bound = math.ceil(recipe.rollout.async_ratio)
        self._unknown_s = recipe.rollout.episode_timeout_s
        self._rows = [dict(row) for row in rows]
        self._ended_at: deque[float] = deque(maxlen=USUAL_OF + 1)
        self._alive_at = now
        self._finished = 0

    def heard(self, finished: int, now: float) -> None:
        """So many episodes have been finished since the rollouts began."""
        if finished != self._finished:
            self._finished, self._alive_at = finished, now

    def iteration(self, row: Mapping[str, float], now: float) -> None:
        """An iteration ended; a learner that was set back repeats some."""
        self._rows = [before for before in self._rows if before["iteration"] < row["iteration"]]
        self._rows.append(dict(row))
        self._ended_at.append(now)
        self._alive_at = now

    def read(self, now: float) -> Iterator[Reading]:
        """Everything that there is to read."""
        usual_s = self._usual_s()
        silent_s = now - self._alive_at
        detail = (
            f"{silent_s:.0f} s ago the last episode or iteration ended, an iteration is taken to last {usual_s:.0f} s"
        )
        yield Reading(STALL.name, SUBJECT, silent_s / usual_s, detail)
        yield from self._staleness()
        yield from self._entropy()
        yield from self._cheating()

    def _usual_s(self) -> float:
        """Until some iterations were timed, it is at least the time after which an episode is given up."""
        times = [later - earlier for earlier, later in pairwise(self._ended_at)]
        least_s = SHORTEST_USUAL_S if len(times) >= TIMED else self._unknown_s
        return max(median(times), least_s) if times else least_s

    def _staleness(self) -> Iterator[Reading]:
        last = self._rows[-PINNED_BATCHES:]
        if self._bound < PINNED_BOUND or len(last) < PINNED_BATCHES:
            return
        shares = [row.get(f"staleness/share_{self._bound}", 0.0) for row in last]
        held_back = all(row.get("idle/slots", 0.0) >= IDLE_SLOTS for row in last)
        detail = f"{self._bound} versions, in each of the last {PINNED_BATCHES} batches"
        yield Reading(STALENESS_PINNED.name, SUBJECT, min(shares) if held_back else 0.0, detail)

    def _entropy(self) -> Iterator[Reading]:
        entropies = [row["objective/entropy"] for row in self._rows if "objective/entropy" in row]
        if len(entropies) < 2 * SMOOTHED:
            return
        first, last = median(entropies[:SMOOTHED]), median(entropies[-SMOOTHED:])
        success = median(row.get("batch/success", 0.0) for row in self._rows[-SMOOTHED:])
        if first >= LEAST_ENTROPY and success < SOLVED:
            detail = f"{last:.4f} nats a token after {first:.4f}, with {success:.0%} of the episodes solved"
            yield Reading(ENTROPY_COLLAPSE.name, SUBJECT, last / first, detail)

    def _cheating(self) -> Iterator[Reading]:
        found = [row["env/cheating"] for row in self._rows[-SMOOTHED:] if "env/cheating" in row]
        if len(found) == SMOOTHED:
            detail = f"{', '.join(f'{each:.2f}' for each in found)} in the last {SMOOTHED} batches"
            yield Reading(CHEATING.name, SUBJECT, sum(found) / SMOOTHED, detail)
