"""Tables of aligned columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional

from .tabs import expand_tabs
from .width import display_width, pad
from .wrap import wrap

ALIGNMENTS = ("left", "right", "center", "decimal")


class Table:
    """Rows of cells under headers. It keeps its own copy of all that it is given.

    Args:
        headers: one per column.
        align: alignment of each column: `left`, `right`, `center`, or `decimal` for points below each other. Columns
            beyond those named are left aligned. Headers of decimal columns are right aligned.
        limits: greatest width of each column, None for any. Wider cells are wrapped.
        gap: what stands between two columns.

    Raises:
        ValueError: there is no column, more alignments or limits than columns, or an unknown alignment.
    """

    def __init__(
        self,
        headers: Iterable[object],
        *,
        align: Iterable[str] = (),
        limits: Iterable[Optional[int]] = (),
        gap: str = "  ",
    ) -> None:
        self.headers = list(headers)
        if not self.headers:
            raise ValueError("a table needs a column")
        self.align = _filled(align, len(self.headers), "left")
        for name in self.align:
            if name not in ALIGNMENTS:
                raise ValueError(f"unknown alignment {name!r}")
        self.limits = _filled(limits, len(self.headers), None)
        self.gap = gap
        self.rows: list[list[object]] = []

    def add(self, row: Iterable[object]) -> None:
        """Append a row. Cells may have several lines; None and those that are missing are empty.

        Raises:
            ValueError: it has more cells than the table has columns.
        """
        self.rows.append(_filled(row, len(self.headers), None))

    def render(self) -> str:
        """The table as text: headers, a rule, and the rows, without spaces at the ends of lines."""
        columns = [self._column(index) for index in range(len(self.headers))]
        widths = [max(display_width(line) for cell in column for line in cell) for column in columns]
        header, *rows = zip(*columns)
        lines = self._row(header, widths)
        lines.append(self.gap.join("-" * width for width in widths))
        for row in rows:
            lines += self._row(row, widths)
        return "\n".join(line.rstrip(" ") for line in lines)

    def _column(self, index: int) -> list[list[str]]:
        """Lines of each cell of a column, its header first."""
        limit = self.limits[index]
        cells = [_lines(row[index], limit) for row in self.rows]
        if self.align[index] == "decimal":
            cells = _points_lined_up(cells)
        return [_lines(self.headers[index], limit), *cells]

    def _row(self, cells: Iterable[list[str]], widths: list[int]) -> list[str]:
        cells = list(cells)
        aligns = ["right" if name == "decimal" else name for name in self.align]
        return [
            self.gap.join(
                pad(cell[number] if number < len(cell) else "", width, align)
                for cell, width, align in zip(cells, widths, aligns)
            )
            for number in range(max(map(len, cells)))
        ]


def _filled(values: Iterable[object], count: int, default: object) -> list:
    """The values, and the default for those that are missing."""
    filled = list(values)
    if len(filled) > count:
        raise ValueError(f"{len(filled)} values for {count} columns")
    return filled + [default] * (count - len(filled))


def _lines(value: object, limit: Optional[int]) -> list[str]:
    text = "" if value is None else str(value)
    if limit is None:
        return expand_tabs(text).split("\n")
    return [short for line in text.split("\n") for short in (wrap(line, limit) or [""])]


def _points_lined_up(cells: list[list[str]]) -> list[list[str]]:
    """Pad the fractions of numbers to one width, so that points meet when the numbers are right aligned."""
    fractions = [[display_width(line) - display_width(line.partition(".")[0]) for line in cell] for cell in cells]
    longest = max((fraction for cell in fractions for fraction in cell), default=0)
    return [
        [line + " " * (longest - fraction) for line, fraction in zip(cell, widths)]
        for cell, widths in zip(cells, fractions)
    ]
