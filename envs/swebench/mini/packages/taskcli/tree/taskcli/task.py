"""A task, and the words in which people give days and intervals."""

from __future__ import annotations

import itertools
import re
from calendar import monthrange
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any

PRIORITIES = {"high": 1, "normal": 2, "low": 3}
_DATES = ("created", "due", "since", "done")
_INTERVAL = re.compile(r"([1-9][0-9]*)([dwm])")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class TaskError(Exception):
    """What was asked for cannot be done; the message is for the user."""


@dataclass
class Task:
    """One thing to do. A repeating task has `since`, the due day from which its intervals are counted."""

    id: int
    text: str
    created: date
    due: date | None = None
    priority: str = "normal"
    tags: list[str] = field(default_factory=list)
    repeat: str | None = None
    since: date | None = None
    done: date | None = None

    def to_dict(self) -> dict[str, Any]:
        """The task as data for JSON."""
        data = {**vars(self), "tags": list(self.tags)}
        return {**data, **{name: data[name] and data[name].isoformat() for name in _DATES}}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Task:
        """A new task from what `to_dict` gave; KeyError, TypeError or ValueError if the data is something else."""
        dates = {name: data[name] and date.fromisoformat(data[name]) for name in _DATES}
        return cls(**{**data, **dates, "tags": list(data["tags"])})


def shift(day: date, interval: str, times: int = 1) -> date:
    """The day some intervals later; an interval is `3d`, `2w` or `1m`. Months end where they end: 31 January plus
    `1m` is the last of February, plus two times `1m` the 31st of March. TaskError if it is no interval, or too far.
    """
    match = _INTERVAL.fullmatch(interval)
    if match is None:
        raise TaskError(f"not an interval: {interval!r} (write 3d, 2w or 1m)")
    amount = int(match[1]) * times
    try:
        if match[2] != "m":
            return day + timedelta(days=amount * (7 if match[2] == "w" else 1))
        year, month = divmod(day.year * 12 + day.month - 1 + amount, 12)
        return date(year, month + 1, min(day.day, monthrange(year, month + 1)[1]))
    except (OverflowError, ValueError) as error:
        raise TaskError(f"{interval} from {day} is too far away") from error


def next_due(since: date, interval: str, after: date) -> date:
    """The first day later than `after` that lies whole intervals from `since`."""
    days = (shift(since, interval, times) for times in itertools.count(1))
    return next(day for day in days if day > after)


def parse_day(text: str, today: date) -> date:
    """Read `2024-03-01`, `today`, `tomorrow` or an interval from today such as `+3d`; TaskError if it is none."""
    if text in ("today", "tomorrow"):
        return today + timedelta(days=text == "tomorrow")
    if text.startswith("+"):
        return shift(today, text[1:])
    try:
        return date.fromisoformat(text if _DAY.fullmatch(text) else "")
    except ValueError:
        raise TaskError(f"not a day: {text!r}") from None
