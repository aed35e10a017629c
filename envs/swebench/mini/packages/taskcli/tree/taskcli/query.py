"""Which tasks to show, and in which order."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Iterable
from datetime import date, timedelta
from typing import Any

from taskcli.task import PRIORITIES, Task, TaskError

DUE: dict[str, Callable[[date | None, date], bool]] = {
    "overdue": lambda due, today: due is not None and due < today,
    "today": lambda due, today: due == today,
    "week": lambda due, today: due is not None and today <= due < today + timedelta(days=7),
    "none": lambda due, today: due is None,
}
"""Filters by due day; `week` is today and the six days after it."""

SORT_KEYS: dict[str, Callable[[Task], Any]] = {
    "id": lambda task: task.id,
    "text": lambda task: fold(task.text),
    "due": lambda task: task.due,
    "priority": lambda task: PRIORITIES[task.priority],
}


def fold(text: str) -> str:
    """The text as it is compared: texts that differ in case only, or in the encoding of accents, fold to the same."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())


def has_tag(task: Task, tag: str) -> bool:
    """Whether the task has the tag, in whatever case."""
    return fold(tag) in map(fold, task.tags)


def select(
    tasks: Iterable[Task], today: date, *, tags: Collection[str] = (), search: str = "", due: str | None = None
) -> list[Task]:
    """The tasks that have all the tags, contain the text searched for and are due as `DUE[due]` says."""
    found = [task for task in tasks if all(has_tag(task, tag) for tag in tags) and fold(search) in fold(task.text)]
    return [task for task in found if due is None or DUE[due](task.due, today)]


def sort_tasks(tasks: Iterable[Task], order: str) -> list[Task]:
    """Tasks by one or more keys of `SORT_KEYS`, with commas; a `-` before a key makes that key descending.

    Tasks without a value come last in either direction, and tasks alike in all keys go by ascending id.
    """
    ordered = sorted(tasks, key=lambda task: task.id)
    for word in reversed(order.split(",")):
        descending, name = word.startswith("-"), word.removeprefix("-")
        if name not in SORT_KEYS:
            raise TaskError(f"cannot sort by {word!r}; there are {', '.join(SORT_KEYS)}")
        value = SORT_KEYS[name]
        present = [task for task in ordered if value(task) is not None]
        missing = [task for task in ordered if value(task) is None]
        ordered = sorted(present, key=value, reverse=descending) + missing
    return ordered
