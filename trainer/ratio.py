"""How much of a batch a domain gets: a weight, or one that changes in the course of the run (a curriculum).

Weights are relative to those of the other domains; `trainer/rollout/tasks.py` makes shares of them. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat

Ratio = PositiveFloat | tuple[tuple[NonNegativeInt, NonNegativeFloat], ...]
"""A weight, or points (iteration, weight) between which it is interpolated."""


def check_ratio(given: Any) -> Any:
    """What a recipe gives, points as tuples.

    Raises:
        ValueError: it is neither a positive weight nor points in ascending order.
    """
    if isinstance(given, Sequence) and not isinstance(given, str):
        _check_points(given)
        return tuple((iteration, float(weight)) for iteration, weight in given)
    if not (_is_weight(given) and given > 0):
        raise ValueError(
            f"{given!r} is no share: give a weight above 0, as in `ratio: 2`, or points [iteration, weight]"
            " between which it changes, as in `ratio: [[0, 1.0], [50, 0.2]]`"
        )
    return given


def weight_at(ratio: Ratio, iteration: int) -> float:
    """The weight in an iteration: interpolated linearly between the points around it, constant outside of them."""
    if not isinstance(ratio, tuple):
        return ratio
    before = [point for point in ratio if point[0] <= iteration]
    after = [point for point in ratio if point[0] > iteration]
    if not before or not after:
        return before[-1][1] if before else after[0][1]
    (start, from_weight), (end, to_weight) = before[-1], after[0]
    return from_weight + (to_weight - from_weight) * (iteration - start) / (end - start)


def bends(ratio: Ratio) -> tuple[int, ...]:
    """Iterations between which the weight changes evenly, the run's first included."""
    return (0, *(point[0] for point in ratio)) if isinstance(ratio, tuple) else (0,)


def _is_weight(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check_points(points: Sequence[Any]) -> None:
    for point in points:
        pair = isinstance(point, Sequence) and not isinstance(point, str) and len(point) == 2
        if not (pair and all(map(_is_weight, point)) and isinstance(point[0], int) and min(point) >= 0):
            raise ValueError(
                f"{point!r} is no point of a curriculum: give [iteration, weight], a whole number and a number, neither"
                " below 0, as in `ratio: [[0, 1.0], [50, 0.2]]`"
            )
    iterations = [point[0] for point in points]
    if not points or any(later <= earlier for earlier, later in pairwise(iterations)):
        raise ValueError(f"the iterations of the points must ascend, and there must be one at least; got {iterations}")
