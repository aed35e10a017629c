"""Margins of texts of many lines. Only a line feed ends a line here, so that other separators stay untouched."""

from __future__ import annotations

import os


def indent(text: str, prefix: str, *, blank: bool = False) -> str:
    """Put a prefix before each line.

    Args:
        blank: put it before lines of nothing but whitespace, too. What follows the last line feed is no line if empty.
    """
    lines = text.split("\n")
    last = len(lines) - 1
    return "\n".join(
        prefix + line if line.strip() or (blank and (line or number < last)) else line
        for number, line in enumerate(lines)
    )


def dedent(text: str) -> str:
    """Remove the whitespace that all lines begin with; tabs and spaces are not the same.

    Lines of nothing but whitespace do not count, and become empty.
    """
    lines = [line if line.strip() else "" for line in text.split("\n")]
    margins = [line[: len(line) - len(line.lstrip())] for line in lines if line]
    # commonprefix compares strings character by character, whatever they are.
    margin = len(os.path.commonprefix(margins))
    return "\n".join(line[margin:] for line in lines)
