"""Weeks as ISO 8601 numbers them: from Monday to Sunday, in the year that has their Thursday."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, timedelta

_WEEK = re.compile(r"([0-9]{4})-W([0-9]{2})")


def weeks_in_year(year: int) -> int:
    """52 or 53; the 28th of December is always in the last one."""
    return date(year, 12, 28).isocalendar()[1]


@dataclass(frozen=True, order=True)
class Week:
    """A week; `year` is the ISO year, which at New Year may differ from that of its days. ValueError if there is no
    such week.
    """

    year: int
    number: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= weeks_in_year(self.year):
            raise ValueError(f"{self.year} has no week {self.number}")

    @classmethod
    def of(cls, day: date) -> Week:
        """The week in which a day lies."""
        year, number, _ = day.isocalendar()
        return cls(year, number)

    @classmethod
    def parse(cls, text: str) -> Week:
        """Read `2024-W05`; ValueError if it is written otherwise."""
        match = _WEEK.fullmatch(text)
        if match is None:
            raise ValueError(f"not an ISO week: {text!r}")
        return cls(int(match[1]), int(match[2]))

    @property
    def monday(self) -> date:
        """The first day."""
        return date.fromisocalendar(self.year, self.number, 1)

    def __add__(self, weeks: int) -> Week:
        return Week.of(self.monday + timedelta(weeks=weeks))

    def __sub__(self, other: Week) -> int:
        """How many weeks lie between two."""
        return (self.monday - other.monday).days // 7

    def __str__(self) -> str:
        return f"{self.year:04}-W{self.number:02}"
