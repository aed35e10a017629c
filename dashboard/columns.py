"""What a table is made of (pure): columns of fixed widths, what they say of an item, and by what they sort.

Widths are fixed, so that a refresh never measures anything. A cell's tone is a name, never a colour.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from rocknroll.dashboard.figures import UNKNOWN
from rocknroll.dashboard.text import duration, one_line

ItemT = TypeVar("ItemT")


class Cell(NamedTuple):
    text: str
    tone: str = ""
    """`good`, `busy`, `coming`, `warning`, `error`, `quiet`, or plain."""


class Column(NamedTuple, Generic[ItemT]):
    key: str
    title: str
    width: int
    cell: Callable[[ItemT, float], Cell]
    """Of an item, at the time of the snapshot."""
    order: Callable[[ItemT], Any]
    """Sorts rising; what is not known comes last."""
    shown: bool = True
    """Unless the column picker says otherwise."""


@dataclass(frozen=True)
class Layout(Generic[ItemT]):
    """One kind of table."""

    columns: tuple[Column[ItemT], ...]
    """The first one names the item, and cannot be hidden."""
    key: Callable[[ItemT], str]
    found_by: Callable[[ItemT], str]
    """The text that a filter looks through."""
    bad: Callable[[ItemT], bool]
    """Whether it stays when only what went wrong is shown."""
    sorted_by: str = ""
    """A column's key; empty: as given."""

    def column(self, key: str) -> Column[ItemT]:
        return next(column for column in self.columns if column.key == key)


def words(
    key: str,
    title: str,
    width: int,
    read: Callable[[ItemT], str | None],
    order: Callable[[ItemT], Any] | None = None,
    tone: Callable[[ItemT], str] = lambda one: "",
    shown: bool = True,
) -> Column[ItemT]:
    """A column of text."""

    def cell(one: ItemT, at: float) -> Cell:
        return Cell(one_line(read(one) or UNKNOWN, width - 1), tone(one))

    return Column(key, title, width, cell, order or (lambda one: (not read(one), read(one) or "")), shown)


def number(
    key: str,
    title: str,
    width: int,
    read: Callable[[ItemT], float | None],
    show: Callable[[float], str] = lambda value: f"{value:g}",
    tone: Callable[[ItemT], str] = lambda one: "",
    falling: bool = True,
    shown: bool = True,
) -> Column[ItemT]:
    """A column of figures; `falling`: the largest come first."""

    def cell(one: ItemT, at: float) -> Cell:
        value = read(one)
        return Cell(UNKNOWN if value is None else show(value), tone(one))

    def order(one: ItemT) -> tuple[bool, float]:
        value = read(one)
        return (value is None, (-1 if falling else 1) * (value or 0.0))

    return Column(key, title, width, cell, order, shown)


def since(key: str, title: str, read: Callable[[ItemT], float | None], shown: bool = True) -> Column[ItemT]:
    """A column of times that have passed since a moment; the longest come first."""

    def cell(one: ItemT, at: float) -> Cell:
        moment = read(one)
        return Cell(UNKNOWN if moment is None else duration(at - moment))

    def order(one: ItemT) -> tuple[bool, float]:
        moment = read(one)
        return (moment is None, moment or 0.0)

    return Column(key, title, 8, cell, order, shown)


def natural(name: str) -> tuple[str, int]:
    """`box-2` before `box-10`."""
    head = name.rstrip("0123456789")
    digits = name[len(head) :]
    return head, int(digits) if digits.isascii() and digits else -1
