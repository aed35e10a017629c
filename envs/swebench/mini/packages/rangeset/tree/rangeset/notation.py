"""The notation of CPU lists: `0-3,8`. Unlike everywhere else, the number behind a dash belongs to the range."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rangeset.interval import Interval

_RANGE = re.compile(r"\s*(-?[0-9]+)(?:\s*-\s*(-?[0-9]+))?\s*")


def parse(text: str) -> list[Interval]:
    """Intervals in the order of the text; they may overlap.

    Raises:
        ValueError: a part is neither a number nor two in rising order with a dash between them.
    """
    found: list[Interval] = []
    for part in text.split(",") if text.strip() else []:
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"not a range: {part.strip()!r}")
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if last < first:
            raise ValueError(f"the range falls: {part.strip()!r}")
        found.append(Interval(first, last + 1))
    return found


def write(intervals: Iterable[Interval]) -> str:
    """Nonempty intervals in this notation; one number alone stands without a dash."""
    return ",".join(f"{start}-{end - 1}" if end - start > 1 else str(start) for start, end in intervals)
