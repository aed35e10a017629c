"""Sets of integers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rangeset import bounds as algebra
from rangeset import notation
from rangeset.interval import Interval, checked, window


class RangeSet:
    """A set of integers, which may be changed. `len` is the number of its intervals, `size` that of its integers."""

    def __init__(self, intervals: Iterable[tuple[int, int]] = ()) -> None:
        self._bounds: list[int] = []
        for start, end in intervals:
            self.add(start, end)

    @classmethod
    def parse(cls, text: str) -> RangeSet:
        """Read what `str` gives: `0-3,8`, each range with both its ends.

        Raises:
            ValueError: the text is not in that notation.
        """
        return cls(notation.parse(text))

    @classmethod
    def _of(cls, bounds: list[int]) -> RangeSet:
        """A set that takes a list of bounds over."""
        made = cls()
        made._bounds = bounds
        return made

    def add(self, start: int, end: int) -> None:
        start, end = checked(start, end)
        if start < end:
            algebra.insert(self._bounds, start, end)

    def discard(self, start: int, end: int) -> None:
        """Take an interval out, as far as it is in."""
        start, end = checked(start, end)
        if start < end:
            algebra.cut(self._bounds, start, end)

    def covers(self, start: int, end: int) -> bool:
        """Whether all integers of an interval are in; those of an empty one are."""
        start, end = checked(start, end)
        return start == end or algebra.covers(self._bounds, start, end)

    def span(self) -> Interval | None:
        """The smallest interval that holds the set, None for the empty set."""
        return Interval(self._bounds[0], self._bounds[-1]) if self._bounds else None

    def gaps(self, start: int | None = None, end: int | None = None) -> list[Interval]:
        """Intervals within [start, end) that are not in the set; by default between its first and last integer."""
        low, high = window(start, end, self.span())
        whole = [low, high] if low < high else []
        return algebra.intervals(algebra.combine(whole, self._bounds, algebra.difference))

    def first_gap(self, size: int, start: int = 0) -> Interval:
        """The first `size` integers in a row, none of them below `start`, that are not in the set."""
        for interval in self:
            if interval.end > start:
                if start + size <= interval.start:
                    break
                start = interval.end
        return checked(start, start + size)

    def points(self) -> Iterator[int]:
        """The integers in rising order."""
        return (point for interval in self for point in range(*interval))

    @property
    def size(self) -> int:
        return sum(interval.size for interval in self)

    def copy(self) -> RangeSet:
        return self._of(list(self._bounds))

    def __contains__(self, point: int) -> bool:
        return algebra.contains(self._bounds, point)

    def __iter__(self) -> Iterator[Interval]:
        """The intervals in rising order, as they are now."""
        return iter(algebra.intervals(self._bounds))

    def __len__(self) -> int:
        return len(self._bounds) // 2

    def __eq__(self, other: object) -> bool:
        return self._bounds == other._bounds if isinstance(other, RangeSet) else NotImplemented

    def __le__(self, other: RangeSet) -> bool:
        """Whether it is a subset."""
        return not self - other

    def __lt__(self, other: RangeSet) -> bool:
        return self <= other and self != other

    def isdisjoint(self, other: RangeSet) -> bool:
        return not self & other

    def __or__(self, other: RangeSet) -> RangeSet:
        return self._combined(other, algebra.union)

    def __and__(self, other: RangeSet) -> RangeSet:
        return self._combined(other, algebra.intersection)

    def __sub__(self, other: RangeSet) -> RangeSet:
        return self._combined(other, algebra.difference)

    def __xor__(self, other: RangeSet) -> RangeSet:
        return self._combined(other, algebra.symmetric_difference)

    def update(self, other: RangeSet) -> None:
        """Add all of another set."""
        self._bounds = algebra.combine(self._bounds, other._bounds, algebra.union)

    def _combined(self, other: RangeSet, keep: algebra.Keep) -> RangeSet:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self._of(algebra.combine(self._bounds, other._bounds, keep))

    def __str__(self) -> str:
        return notation.write(self)

    def __repr__(self) -> str:
        return f"RangeSet({[tuple(interval) for interval in self]})"
