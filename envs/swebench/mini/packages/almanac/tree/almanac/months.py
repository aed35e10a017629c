"""Months: their lengths, their ends, and steps from one to another."""

from __future__ import annotations

from calendar import isleap, monthrange
from datetime import MAXYEAR, MINYEAR, date


def is_leap(year: int) -> bool:
    """Whether the year has a 29th of February."""
    return isleap(year)


def days_in_month(year: int, month: int) -> int:
    """Number of days of the month, 28 to 31."""
    return monthrange(year, month)[1]


def month_end(day: date) -> date:
    """The last day of the month in which `day` lies."""
    return day.replace(day=days_in_month(day.year, day.month))


def add_months(day: date, months: int) -> date:
    """The same day of another month, or that month's last day if it is shorter; OverflowError past the year 9999."""
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    if not MINYEAR <= year <= MAXYEAR:
        raise OverflowError(f"{months} months from {day} is out of range")
    return date(year, month + 1, min(day.day, days_in_month(year, month + 1)))


def nth_weekday(year: int, month: int, weekday: int, n: int) -> date | None:
    """The nth such weekday of the month, counted from its end if n is negative; None if the month has fewer."""
    if n == 0:
        raise ValueError("weekdays of a month are counted from 1, or from -1 backwards")
    if n > 0:
        first = date(year, month, 1)
        number = 1 + (weekday - first.weekday()) % 7 + 7 * (n - 1)
    else:
        last = month_end(date(year, month, 1))
        number = last.day - (last.weekday() - weekday) % 7 + 7 * (n + 1)
    return date(year, month, number) if 1 <= number <= days_in_month(year, month) else None
