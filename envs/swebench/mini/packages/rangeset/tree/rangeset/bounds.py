"""A set of integers as the sorted list of its bounds.

`[s0, e0, s1, e1, …]` stands for [s0, e0), [s1, e1), … and increases strictly. A point belongs to the set if and only if
the number of bounds at or below it is odd, which is all that the functions here count on.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable

from rangeset.interval import Interval

Keep = Callable[[bool, bool], bool]
"""Whether a point belongs to the result, by whether it belongs to the left and to the right operand."""


def contains(bounds: list[int], point: int) -> bool:
    return bisect_right(bounds, point) % 2 == 1


def covers(bounds: list[int], start: int, end: int) -> bool:
    """Whether all of a nonempty interval belongs to the set."""
    at = bisect_right(bounds, start)
    return at % 2 == 1 and end <= bounds[at]


def insert(bounds: list[int], start: int, end: int) -> None:
    """Add a nonempty interval in place; intervals that it overlaps or meets become one with it."""
    _replace(bounds, start, end, inside=1)


def cut(bounds: list[int], start: int, end: int) -> None:
    """Take a nonempty interval out in place."""
    _replace(bounds, start, end, inside=0)


def _replace(bounds: list[int], start: int, end: int, inside: int) -> None:
    """Make all of an interval belong to the set (`inside` is 1), or nothing of it (0)."""
    first = bisect_left(bounds, start)
    last = bisect_right(bounds, end)
    opening = [start] if first % 2 != inside else []
    closing = [end] if last % 2 != inside else []
    bounds[first:last] = opening + closing


def combine(left: list[int], right: list[int], keep: Keep) -> list[int]:
    """Bounds of a new set made of two; `keep` must say no to a point of neither."""
    bounds: list[int] = []
    for point in sorted({*left, *right}):
        inside = keep(contains(left, point), contains(right, point))
        if inside != (len(bounds) % 2 == 1):
            bounds.append(point)
    return bounds


def intervals(bounds: list[int]) -> list[Interval]:
    return [Interval(start, end) for start, end in zip(bounds[::2], bounds[1::2])]


def union(left: bool, right: bool) -> bool:
    return left or right


def intersection(left: bool, right: bool) -> bool:
    return left and right


def difference(left: bool, right: bool) -> bool:
    return left and not right


def symmetric_difference(left: bool, right: bool) -> bool:
    return left != right
