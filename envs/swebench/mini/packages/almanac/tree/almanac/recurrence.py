"""Dates that come again: a `Rule` says which, a `Schedule` moves them to business days.

Both are iterables of dates in ascending order, and may be endless: take from them with `itertools.islice`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import date, timedelta

from almanac.business import BusinessCalendar
from almanac.months import add_months, days_in_month, nth_weekday
from almanac.weeks import Week


@dataclass(frozen=True)
class Rule:
    """Every `interval` days, weeks or months from `start` on; nothing before `start` is ever given.

    A weekly rule gives all its `weekdays` (that of `start` if there are none) in every `interval`th week; weeks run
    from Monday to Sunday, and the week of `start` is the first one. A monthly rule gives a `day` (that of `start` by
    default; -1 is the last one) or, with `nth=(n, weekday)`, a weekday. A month without that day is skipped; with
    `clip` its last day is taken.

    Raises:
        ValueError: the parts do not fit together.
    """

    freq: str
    start: date
    interval: int = 1
    count: int | None = None
    until: date | None = None
    weekdays: Collection[int] = ()
    day: int | None = None
    nth: tuple[int, int] | None = None
    clip: bool = False

    def __post_init__(self) -> None:
        if self.freq not in _EXPAND:
            raise ValueError(f"a rule is one of {', '.join(_EXPAND)}, not {self.freq!r}")
        if self.interval < 1 or (self.count is not None and self.count < 1):
            raise ValueError("interval and count are at least 1")
        if self.count is not None and self.until is not None:
            raise ValueError("a rule ends by count or by until, not by both")
        if self.weekdays and self.freq != "weekly":
            raise ValueError("weekdays are for weekly rules")
        if (self.day is not None or self.nth is not None or self.clip) and self.freq != "monthly":
            raise ValueError("day, nth and clip are for monthly rules")
        if self.day is not None and (self.nth is not None or self.day == 0 or not -28 <= self.day <= 31):
            raise ValueError("a monthly rule has nth, or a day from 1 to 31 or from -28 to -1")

    def __iter__(self) -> Iterator[date]:
        for number, day in enumerate(self._days()):
            if number == self.count or (self.until is not None and day > self.until):
                return
            yield day

    def between(self, first: date, last: date) -> list[date]:
        """The dates from `first` to `last`, both included."""
        return _window(self, first, last)

    def next_after(self, day: date) -> date | None:
        """The first date later than `day`; None if there is none."""
        return next((other for other in self if other > day), None)

    def _days(self) -> Iterator[date]:
        """All dates from `start` on, whatever ends the rule."""
        for step in itertools.count(0, self.interval):
            try:
                days = _EXPAND[self.freq](self, step)
            except OverflowError:  # the calendar ends with the year 9999
                return
            yield from (day for day in days if day >= self.start)


def _daily(rule: Rule, step: int) -> list[date]:
    return [rule.start + timedelta(days=step)]


def _weekly(rule: Rule, step: int) -> list[date]:
    monday = (Week.of(rule.start) + step).monday
    weekdays = sorted(set(rule.weekdays)) or [rule.start.weekday()]
    return [monday + timedelta(days=weekday) for weekday in weekdays]


def _monthly(rule: Rule, step: int) -> list[date]:
    first = add_months(rule.start.replace(day=1), step)
    if rule.nth is not None:
        n, weekday = rule.nth
        found = nth_weekday(first.year, first.month, weekday, n)
        return [] if found is None else [found]
    length = days_in_month(first.year, first.month)
    day = rule.start.day if rule.day is None else rule.day
    if day < 0:
        day += length + 1
    if day > length and not rule.clip:
        return []
    return [first.replace(day=min(day, length))]


_EXPAND: dict[str, Callable[[Rule, int], list[date]]] = {"daily": _daily, "weekly": _weekly, "monthly": _monthly}
"""Dates of the period that lies some periods after that of the start, in order."""


@dataclass(frozen=True)
class Schedule:
    """The dates of a rule, each moved to a business day as `BusinessCalendar.roll` does; none is given twice.

    The rule's `start`, `until` and `count` are about the dates before they are moved, `between` and `next_after`
    about those after.
    """

    rule: Rule
    calendar: BusinessCalendar
    convention: str = "following"

    def __iter__(self) -> Iterator[date]:
        last = None
        for nominal in self.rule:
            day = self.calendar.roll(nominal, self.convention)
            if day != last:
                yield day
            last = day

    def between(self, first: date, last: date) -> list[date]:
        """The moved dates from `first` to `last`, both included."""
        return _window(self, first, last)

    def next_after(self, day: date) -> date | None:
        """The first moved date later than `day`; None if there is none."""
        return next((other for other in self if other > day), None)


def _window(days: Rule | Schedule, first: date, last: date) -> list[date]:
    later = itertools.dropwhile(lambda day: day < first, days)
    return list(itertools.takewhile(lambda day: day <= last, later))
