"""A half-open interval of integers."""

from __future__ import annotations

from operator import index
from typing import NamedTuple


class Interval(NamedTuple):
    """The integers from `start` up to `end`, which does not belong to it."""

    start: int
    end: int

    @property
    def size(self) -> int:
        """How many integers it holds."""
        return self.end - self.start


def checked(start: int, end: int) -> Interval:
    """The interval, perhaps empty, that two numbers bound.

    Raises:
        TypeError: one of them is not an integer.
        ValueError: `start` is above `end`.
    """
    interval = Interval(index(start), index(end))
    if interval.start > interval.end:
        raise ValueError(f"the interval ends before its start: [{start}, {end})")
    return interval


def window(start: int | None, end: int | None, span: Interval | None) -> Interval:
    """The interval between two numbers; for None stands the end of `span`, or the other number if that is beyond it.

    Raises:
        ValueError: both are given, and `start` is above `end`.
    """
    low, high = span or Interval(0, 0)
    if start is None:
        start = low if end is None else min(low, end)
    return checked(start, max(high, start) if end is None else end)
