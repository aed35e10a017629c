"""Mappings from integers to values."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rangeset.interval import Interval, checked, window
from rangeset.sets import RangeSet

ABSENT: Any = object()
"""Stands where nothing is mapped."""

Piece = tuple[int, int, Any]
"""Start, end and value."""


class RangeMap:
    """Values by integer. `len` is the number of pieces, each with another value than one that it meets."""

    def __init__(self, items: Iterable[tuple[tuple[int, int], Any]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._values: list[Any] = []
        for (start, end), value in items:
            self.set(start, end, value)

    def set(self, start: int, end: int, value: Any) -> None:
        """Map an interval to a value, whatever it was mapped to."""
        self._splice(start, end, [(start, end, value)])

    def fill(self, start: int, end: int, value: Any) -> None:
        """Map to a value what is mapped to nothing yet."""
        pieces = self._pieces(start, end)
        self._splice(start, end, [(low, high, value if old is ABSENT else old) for low, high, old in pieces])

    def discard(self, start: int, end: int) -> None:
        """Map an interval to nothing."""
        self._splice(start, end, [])

    def apply(self, start: int, end: int, function: Callable[[Any], Any], missing: Any = ABSENT) -> None:
        """Replace each value within an interval by `function` of it.

        Parts without a value count as mapped to `missing`, or stay as they are if it is not given. The function is
        called once per piece, in rising order. If it raises, the map stays as it was.
        """
        pieces: list[Piece] = []
        for low, high, old in self._pieces(start, end):
            value = missing if old is ABSENT else old
            if value is not ABSENT:
                pieces.append((low, high, function(value)))
        self._splice(start, end, pieces)

    def merge(self, other: RangeMap, combine: Callable[[Any, Any], Any]) -> RangeMap:
        """A new map with the values of both, and `combine(mine, theirs)` where both have one."""
        merged = self.copy()
        for low, high, theirs in other._all():
            mine = self._pieces(low, high)
            pieces = [(a, b, theirs if value is ABSENT else combine(value, theirs)) for a, b, value in mine]
            merged._splice(low, high, pieces)
        return merged

    def get(self, point: int, default: Any = None) -> Any:
        """Value of a point, `default` if it has none."""
        at = bisect_right(self._starts, point) - 1
        return self._values[at] if at >= 0 and point < self._ends[at] else default

    def items(self, start: int | None = None, end: int | None = None) -> Iterator[tuple[Interval, Any]]:
        """Pieces and their values in rising order, as they are now; cut off at `start` and `end` if given."""
        low, high = window(start, end, self.span())
        pieces = self._pieces(low, high)
        return iter([(Interval(low, high), value) for low, high, value in pieces if value is not ABSENT])

    def span(self) -> Interval | None:
        """The smallest interval that holds all that is mapped, None for the empty map."""
        return Interval(self._starts[0], self._ends[-1]) if self._starts else None

    def covered(self) -> RangeSet:
        """All that is mapped."""
        return RangeSet(interval for interval, _ in self.items())

    def where(self, value: Any) -> RangeSet:
        """All that is mapped to a value."""
        return RangeSet(interval for interval, mapped in self.items() if mapped == value)

    def copy(self) -> RangeMap:
        return RangeMap(self.items())

    def __contains__(self, point: int) -> bool:
        return self.get(point, ABSENT) is not ABSENT

    def __len__(self) -> int:
        return len(self._starts)

    def __eq__(self, other: object) -> bool:
        return self._all() == other._all() if isinstance(other, RangeMap) else NotImplemented

    def __repr__(self) -> str:
        return f"RangeMap({[((start, end), value) for start, end, value in self._all()]})"

    def _all(self) -> list[Piece]:
        return list(zip(self._starts, self._ends, self._values))

    def _pieces(self, start: int, end: int) -> list[Piece]:
        """All of an interval in pieces, those without a value included."""
        start, end = checked(start, end)
        if start == end:
            return []
        pieces: list[Piece] = []
        for at in range(bisect_right(self._ends, start), bisect_left(self._starts, end)):
            low, high = max(self._starts[at], start), min(self._ends[at], end)
            if start < low:
                pieces.append((start, low, ABSENT))
            pieces.append((low, high, self._values[at]))
            start = high
        return [*pieces, (start, end, ABSENT)] if start < end else pieces

    def _splice(self, start: int, end: int, pieces: list[Piece]) -> None:
        """Put pieces, in rising order, in the place of all that an interval is mapped to."""
        start, end = checked(start, end)
        if start == end:
            return
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        old = self._all()[first:last]
        before = [(low, min(high, start), value) for low, high, value in old if low < start]
        after = [(max(low, end), high, value) for low, high, value in old if high > end]
        joined = _joined(before + pieces + after)
        self._starts[first:last] = [low for low, _, _ in joined]
        self._ends[first:last] = [high for _, high, _ in joined]
        self._values[first:last] = [value for _, _, value in joined]


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Pieces in rising order, those with equal values that meet made one."""
    joined: list[Piece] = []
    for low, high, value in pieces:
        if joined and joined[-1][1] == low and joined[-1][2] == value:
            joined[-1] = (joined[-1][0], high, joined[-1][2])
        else:
            joined.append((low, high, value))
    return joined
