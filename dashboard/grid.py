"""A table of any number of rows that draws the lines that are seen, and of these only those that changed.

Textual's own table measures and keeps every cell: a thousand rows of which a tenth changes cost it milliseconds, and
a removal or a new order tens of them. Here a refresh sorts the items and draws a screenful; widths are fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Generic, NamedTuple

from rich.cells import set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from rocknroll.dashboard.columns import Cell, ItemT, Layout
from rocknroll.dashboard.listing import Listing

GUTTER = 2
"""Cells before the first column: whether a row is marked."""
HEADER = 1
SORTED = {False: "↑", True: "↓"}


class _Line(NamedTuple):
    """Everything that a line's looks depend on, but the theme."""

    scrolled: int
    cursor: bool
    cells: list[Cell]


class Grid(ScrollView, Generic[ItemT], can_focus=True):
    """Shows a `Listing`; keys and mouse move its cursor."""

    COMPONENT_CLASSES = {  # noqa: RUF012 (as Textual declares it)
        "grid--header",
        "grid--picked",
        "grid--cursor",
        "grid--mark",
        "grid--good",
        "grid--busy",
        "grid--coming",
        "grid--warning",
        "grid--error",
        "grid--quiet",
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move(1)", "Down", show=False),
        Binding("k,up", "move(-1)", "Up", show=False),
        Binding("g,home", "move_to(0)", "First", show=False),
        Binding("G,end", "move_to(-1)", "Last", show=False),
        Binding("pagedown,ctrl+f", "page(1)", "Page down", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "Page up", show=False),
        Binding("left", "scroll_left", "Scroll left", show=False),
        Binding("right", "scroll_right", "Scroll right", show=False),
        Binding("enter", "open", "Open"),
        Binding("space", "mark", "Mark", show=False),
        Binding("N", "sort_first", "Sort by name", show=False),
        Binding("A", "sort('age')", "Sort by age", show=False),
        Binding("S", "sort('state')", "Sort by status", show=False),
        Binding("O", "sort_picked", "Sort by the picked column", show=False),
        Binding("shift+left", "pick(-1)", "Pick column to the left", show=False),
        Binding("shift+right", "pick(1)", "Pick column to the right", show=False),
        Binding("e,ctrl+z", "faults", "Only what went wrong", show=False),
        Binding("c", "columns", "Choose columns", show=False),
    ]

    class Opened(Message):
        """Enter, or a double click."""

    class Moved(Message):
        """Another item is under the cursor, or the items changed."""

    class ColumnsWanted(Message):
        """The column picker was asked for."""

        def __init__(self, grid: Grid[ItemT]) -> None:
            self.grid = grid
            super().__init__()

    def __init__(self, layout: Layout[ItemT]) -> None:
        super().__init__()
        self.listing = Listing(layout)
        self.picked = layout.columns[0].key
        """Column that shift-o sorts by."""
        self._at = 0.0
        self._drawn: dict[int, _Line] = {}
        """What each line of the screen showed when it was last drawn."""
        self._styles_of: dict[tuple[str, bool, bool], Style] = {}

    def give(self, items: Sequence[ItemT], at: float) -> None:
        """New items, and the time that ages are counted to."""
        self._at = at
        self.listing.give(items)
        self._changed()

    def set_filter(self, text: str) -> None:
        """See `Listing.filter`."""
        self.listing.filter = text
        self.listing.arrange()
        self._changed()

    def set_columns(self, keys: Sequence[str]) -> None:
        self.listing.show_columns(keys)
        self.picked = self.listing.columns[0].key
        self._changed()

    def clear_marks(self) -> None:
        self.listing.marks.clear()
        self._changed()

    def select(self, key: str) -> bool:
        """Move the cursor to an item; False when it is not seen."""
        keys = [self.listing.layout.key(one) for one in self.listing.visible]
        if key not in keys:
            return False
        self.action_move_to(keys.index(key))
        return True

    def line(self, y: int) -> str:
        """The text of a line of the screen, for those who look from outside."""
        return "".join(text for text, _ in self._cells(y))

    def render_line(self, y: int) -> Strip:
        state = self._drawn[y] = self._state(y)
        header, cursor = y < HEADER, state.cursor
        segments = [Segment(text, self._style(tone, header, cursor)) for text, tone in state.cells]
        width = max(self.virtual_size.width, self.size.width)
        base = self._style("", header, cursor)
        left = self.scroll_offset.x
        return Strip(segments).adjust_cell_length(width, base).crop(left, left + self.size.width)

    def _changed(self) -> None:
        listing = self.listing
        size = Size(GUTTER + sum(column.width for column in listing.columns), len(listing.visible) + HEADER)
        if size != self.virtual_size:
            self.virtual_size = size
        self._keep_cursor_in_sight()
        for y in range(self.size.height):
            if self._drawn.get(y) != self._state(y):
                self.refresh(Region(0, y, self.size.width, 1))
        self.post_message(self.Moved())

    def _state(self, y: int) -> _Line:
        return _Line(self.scroll_offset.x, self._index(y) == self.listing.cursor, self._cells(y))

    def _index(self, y: int) -> int | None:
        """Of the item on a line of the screen; None where there is none."""
        index = self.scroll_offset.y + y - HEADER
        return index if y >= HEADER and index < len(self.listing.visible) else None

    def _cells(self, y: int) -> list[Cell]:
        listing = self.listing
        if y < HEADER:
            titles = [
                Cell(set_cell_size(self._title(column.key, column.title), column.width), self._title_tone(column.key))
                for column in listing.columns
            ]
            return [Cell(" " * GUTTER, "header"), *titles]
        index = self._index(y)
        if index is None:
            return []
        one = listing.visible[index]
        mark = Cell(set_cell_size("*" if listing.layout.key(one) in listing.marks else "", GUTTER), "mark")
        cells = [column.cell(one, self._at) for column in listing.columns]
        sized = zip(cells, listing.columns, strict=True)
        return [mark, *(Cell(set_cell_size(cell.text, column.width), cell.tone) for cell, column in sized)]

    def _title(self, key: str, title: str) -> str:
        return f"{title}{SORTED[self.listing.reverse]}" if key == self.listing.sorted_by else title

    def _title_tone(self, key: str) -> str:
        return "picked" if key == self.picked and self.has_focus else "header"

    def notify_style_update(self) -> None:
        self._styles_of.clear()
        super().notify_style_update()

    def _style(self, tone: str, header: bool, cursor: bool) -> Style:
        """Remembered, for Textual computes it anew from all that is around the widget."""
        key = (tone, header, cursor)
        if key not in self._styles_of:
            self._styles_of[key] = self._computed_style(*key)
        return self._styles_of[key]

    def _computed_style(self, tone: str, header: bool, cursor: bool) -> Style:
        if header:
            return self.get_component_rich_style(f"grid--{tone or 'header'}")
        style = self.get_component_rich_style(f"grid--{tone}", partial=True) if tone else Style.null()
        if cursor:
            return style + self.get_component_rich_style("grid--cursor")
        return self.rich_style + style

    def _keep_cursor_in_sight(self) -> None:
        rows = max(1, self.size.height - HEADER)
        top, cursor = int(self.scroll_target_y), self.listing.cursor
        if cursor < top:
            self.scroll_to(y=cursor, animate=False, immediate=True)
        elif cursor >= top + rows:
            self.scroll_to(y=cursor - rows + 1, animate=False, immediate=True)

    def on_resize(self) -> None:
        self._drawn.clear()
        self._changed()

    def on_focus(self) -> None:
        self.refresh(Region(0, 0, self.size.width, HEADER))

    def on_blur(self) -> None:
        self.refresh(Region(0, 0, self.size.width, HEADER))

    def on_click(self, event: events.Click) -> None:
        if event.y < HEADER:
            column = self.listing.column_at(event.x + self.scroll_offset.x - GUTTER)
            if column is not None:
                self.picked = column.key
                self.action_sort(column.key)
            return
        index = self._index(event.y)
        if index is not None:
            self.action_move_to(index)
            if event.chain == 2:
                self.action_open()

    def action_move(self, step: int) -> None:
        self.action_move_to(max(0, self.listing.cursor + step))

    def action_move_to(self, index: int) -> None:
        self.listing.move_to(index if index >= 0 else len(self.listing.visible) - 1)
        self._changed()

    def action_page(self, pages: int) -> None:
        self.action_move(pages * max(1, self.size.height - HEADER - 1))

    def action_open(self) -> None:
        if self.listing.current is not None:
            self.post_message(self.Opened())

    def action_mark(self) -> None:
        self.listing.mark()
        self._changed()

    def action_sort(self, key: str) -> None:
        if any(column.key == key for column in self.listing.layout.columns):
            self.listing.sort_by(key)
            self._changed()

    def action_sort_first(self) -> None:
        self.action_sort(self.listing.layout.columns[0].key)

    def action_sort_picked(self) -> None:
        self.action_sort(self.picked)

    def action_pick(self, step: int) -> None:
        keys = [column.key for column in self.listing.columns]
        self.picked = keys[(keys.index(self.picked) + step) % len(keys)]
        self._changed()

    def action_faults(self) -> None:
        self.listing.faults_only = not self.listing.faults_only
        self.listing.arrange()
        self._changed()

    def action_columns(self) -> None:
        self.post_message(self.ColumnsWanted(self))
