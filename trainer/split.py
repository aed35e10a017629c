"""How devices are best divided between playing and learning, by the work that a run has measured. Pure.

An iteration costs the engines W_e device-seconds and the learner W_l: what each was busy, times its devices. Both are
taken to be divisible, so on n devices they last W / n. Where playing and learning overlap the slower of the two is what
an iteration takes, and it is shortest when both take as long: n_l : n_e = W_l : W_e. Where they take turns the sum is,
and it is shortest at the square roots of that (Lagrange). Whole devices are found by trying all divisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rocknroll.trainer.rollout.meter import SIDES, bottleneck

MEASURED = tuple(f"idle/{side}" for side in SIDES)


@dataclass(frozen=True)
class Split:
    """A division of the devices, and what it promises."""

    learner: int
    engine: int
    speedup: float
    """Iterations in the same time, relative to the run as it was; 1 where it is divided best already."""


def measured(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean idle shares over the second half of a run, whose beginning is no guide; empty where nothing was measured.

    A batch that was replayed has none.
    """
    rows = [row for row in metrics if all(name in row for name in MEASURED)]
    late = rows[len(rows) // 2 :]
    return {name: sum(row[name] for row in late) / len(late) for name in MEASURED} if late else {}


def suggest(idle: Mapping[str, float], learner: int, engine: int, *, overlapped: bool) -> Split | None:
    """The best division of as many devices as the run had, `learner` and `engine` of them; None where devices are not
    what it waits for, because environments were busiest, or nothing was measured.

    `overlapped`: whether playing and learning go on at the same time (an async ratio above 0).
    """
    if bottleneck(idle) in ("", "environments"):
        return None
    work_e, work_l = (1 - idle["idle/engine"]) * engine, (1 - idle["idle/learner"]) * learner

    def lasts(n_l: int, n_e: int) -> float:
        return max(work_l / n_l, work_e / n_e) if overlapped else work_l / n_l + work_e / n_e

    total = learner + engine
    best = min(range(1, total), key=lambda n: (lasts(n, total - n), abs(n - learner)))
    return Split(best, total - best, lasts(learner, engine) / lasts(best, total - best))
