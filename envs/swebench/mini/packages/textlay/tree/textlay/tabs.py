"""Tabs, by the columns of the screen."""

from __future__ import annotations

from .width import char_width


def expand_tabs(text: str, tabsize: int = 8, column: int = 0) -> str:
    """Replace tabs by the spaces up to the next tab stop.

    Args:
        tabsize: columns from one stop to the next.
        column: where on its line the text begins; later lines begin at column 0.

    Raises:
        ValueError: `tabsize` is less than 1.
    """
    if tabsize < 1:
        raise ValueError("tabsize must be at least 1")
    parts = []
    for char in text:
        if char == "\t":
            space = tabsize - column % tabsize
            parts.append(" " * space)
            column += space
        else:
            parts.append(char)
            column = 0 if char == "\n" else column + char_width(char)
    return "".join(parts)
