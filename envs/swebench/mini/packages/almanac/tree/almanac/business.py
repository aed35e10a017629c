"""Business days: what is left of the week after weekends, holidays and the substitutes of holidays."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import MAXYEAR, MINYEAR, date, timedelta

from almanac.months import days_in_month, nth_weekday

_DAY = timedelta(days=1)
ROLLS = ("following", "preceding", "modified")
OBSERVED = ("never", "nearest", "next")


@dataclass(frozen=True)
class Holiday:
    """A yearly holiday: on a day of a month, or, with `nth=(n, weekday)`, on its nth such weekday (-1 is the last)."""

    name: str
    month: int
    day: int | None = None
    nth: tuple[int, int] | None = None

    def on(self, year: int) -> date | None:
        """Its day in a year; None if that year has none, as with the 29th of February."""
        if self.nth is not None:
            n, weekday = self.nth
            return nth_weekday(year, self.month, weekday, n)
        if self.day is None:
            raise ValueError(f"{self.name} has neither a day nor nth")
        return date(year, self.month, self.day) if self.day <= days_in_month(year, self.month) else None


class BusinessCalendar:
    """A weekend and holidays. `observed` says what a holiday on a weekend day is worth:

    - `never`: nothing more.
    - `nearest`: the nearest weekday is off too, the later one if two are as near.
    - `next`: the next weekday is off too that is no holiday and no substitute of an earlier one.
    """

    def __init__(
        self, holidays: Iterable[Holiday] = (), weekend: Collection[int] = (5, 6), observed: str = "never"
    ) -> None:
        if observed not in OBSERVED:
            raise ValueError(f"observed is one of {', '.join(OBSERVED)}, not {observed!r}")
        if set(weekend) >= set(range(7)):
            raise ValueError("a week needs a day that is not weekend")
        self._holidays = tuple(holidays)
        self._weekend = frozenset(weekend)
        self._observed = observed
        self._years: dict[int, dict[date, str]] = {}

    def holidays(self, year: int) -> dict[date, str]:
        """Names of the holidays and substitutes that fall in a year, by day and in order."""
        if year not in self._years:
            near = range(max(year - 1, MINYEAR), min(year + 1, MAXYEAR) + 1)
            self._years[year] = {day: name for day, name in self._days_off(near) if day.year == year}
        return dict(self._years[year])

    def is_business_day(self, day: date) -> bool:
        """Whether it is neither weekend nor holiday nor the substitute of one."""
        return day.weekday() not in self._weekend and day not in self.holidays(day.year)

    def roll(self, day: date, convention: str = "following") -> date:
        """The day itself if it is a business day, else a business day near it.

        `following` is the next one, `preceding` the one before, `modified` the next one unless that is in another
        month, then the one before. ValueError if there is no such convention.
        """
        if convention not in ROLLS:
            raise ValueError(f"a roll is one of {', '.join(ROLLS)}, not {convention!r}")
        found = _walk(day, -_DAY if convention == "preceding" else _DAY, self.is_business_day)
        if convention == "modified" and found.month != day.month:
            return _walk(day, -_DAY, self.is_business_day)
        return found

    def add(self, day: date, days: int) -> date:
        """The nth business day after `day`, or before it if `days` is negative; `day` itself need not be one.

        With 0 it is `day` rolled to the following business day.
        """
        if days == 0:
            return self.roll(day)
        step = _DAY if days > 0 else -_DAY
        for _ in range(abs(days)):
            day = _walk(day + step, step, self.is_business_day)
        return day

    def count(self, first: date, last: date) -> int:
        """Number of business days from `first` up to, but without, `last`; negative if `last` is the earlier one."""
        if last < first:
            return -self.count(last, first)
        return sum(self.is_business_day(first + n * _DAY) for n in range((last - first).days))

    def _days_off(self, years: Iterable[int]) -> Iterator[tuple[date, str]]:
        """Holidays of the years given and their substitutes, in order; a day has one name."""
        dated = sorted((day, h.name) for year in years for h in self._holidays for day in [h.on(year)] if day)
        names: dict[date, str] = {}
        for day, name in dated:
            names.setdefault(day, name)
        for day, name in dated:
            if day.weekday() in self._weekend and self._observed != "never":
                names.setdefault(self._substitute(day, names), f"{name} (observed)")
        return iter(sorted(names.items()))

    def _substitute(self, day: date, taken: Collection[date]) -> date:
        if self._observed == "next":
            return _walk(day, _DAY, lambda other: other.weekday() not in self._weekend and other not in taken)
        later = _walk(day, _DAY, lambda other: other.weekday() not in self._weekend)
        earlier = _walk(day, -_DAY, lambda other: other.weekday() not in self._weekend)
        return earlier if day - earlier < later - day else later


def _walk(day: date, step: timedelta, fits: Callable[[date], bool]) -> date:
    """The first day that fits, `day` included."""
    while not fits(day):
        day += step
    return day
