"""Which items of a table are seen, in which order and with which columns (pure): filter, sort, marks, cursor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

from rocknroll.dashboard.columns import Column, ItemT, Layout


class Listing(Generic[ItemT]):
    """The items last given, as they are to be seen. The cursor and the marks stay with their items."""

    def __init__(self, layout: Layout[ItemT]) -> None:
        self.layout = layout
        self.columns = [column for column in layout.columns if column.shown]
        self.sorted_by, self.reverse = layout.sorted_by, False
        self.filter = ""
        """Text that must be found in an item, whatever its case; `!` in front: must not."""
        self.faults_only = False
        self.marks: set[str] = set()
        self.visible: list[ItemT] = []
        self.total = 0
        self.cursor_key = ""
        self.cursor = 0
        self._items: Sequence[ItemT] = ()

    @property
    def current(self) -> ItemT | None:
        """The item under the cursor."""
        return self.visible[self.cursor] if self.visible else None

    @property
    def chosen(self) -> list[ItemT]:
        """What an action is about: the marked items that are seen, else the one under the cursor."""
        marked = [one for one in self.visible if self.layout.key(one) in self.marks]
        return marked or ([self.current] if self.current is not None else [])

    def give(self, items: Sequence[ItemT]) -> None:
        """New items; marks of those that are gone are forgotten."""
        self._items, self.total = items, len(items)
        if self.marks:
            self.marks &= {self.layout.key(one) for one in items}
        self.arrange()

    def arrange(self) -> None:
        """Filter and sort again, and find the cursor's item."""
        seen = [one for one in self._items if self._wanted(one)]
        if self.sorted_by:
            seen.sort(key=self.layout.column(self.sorted_by).order, reverse=self.reverse)
        self.visible = seen
        keys = self.layout.key
        found = next((at for at, one in enumerate(seen) if keys(one) == self.cursor_key), None)
        self.move_to(self.cursor if found is None else found)

    def move_to(self, index: int) -> None:
        """The cursor to this place, or the nearest there is."""
        self.cursor = max(0, min(index, len(self.visible) - 1))
        self.cursor_key = self.layout.key(self.visible[self.cursor]) if self.visible else self.cursor_key

    def sort_by(self, key: str) -> None:
        """By this column; asked again, the other way round."""
        self.reverse = not self.reverse if key == self.sorted_by else False
        self.sorted_by = key
        self.arrange()

    def mark(self) -> None:
        """Mark the item under the cursor, or unmark it, and go to the next."""
        if self.current is not None:
            self.marks ^= {self.cursor_key}
            self.move_to(self.cursor + 1)

    def show_columns(self, keys: Sequence[str]) -> None:
        """These, in the layout's order, and always the first."""
        first = self.layout.columns[0].key
        self.columns = [column for column in self.layout.columns if column.key in keys or column.key == first]

    def column_at(self, x: int) -> Column[ItemT] | None:
        """The column that covers a cell of the line, counted from the first column's left edge."""
        for column in self.columns:
            x -= column.width
            if x < 0:
                return column
        return None

    def _wanted(self, one: ItemT) -> bool:
        if self.faults_only and not self.layout.bad(one):
            return False
        wanted = self.filter.casefold()
        if not wanted.lstrip("!"):
            return True
        text = self.layout.found_by(one).casefold()
        return wanted[1:] not in text if wanted.startswith("!") else wanted in text
