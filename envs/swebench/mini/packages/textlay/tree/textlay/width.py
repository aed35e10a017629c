"""Columns that text takes on a terminal.

Wide characters (East Asian W and F) take two columns, marks that belong to the character before them take none,
everything else takes one. A character and its marks make a cluster, which nothing here ever tears apart.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from functools import lru_cache

ELLIPSIS = "\u2026"


@lru_cache(maxsize=4096)
def _is_mark(char: str) -> bool:
    # Vowels and final consonants of decomposed Hangul merge with the syllable that they follow.
    return unicodedata.category(char) in ("Mn", "Me", "Cf") or "\u1160" <= char <= "\u11ff"


@lru_cache(maxsize=4096)
def char_width(char: str) -> int:
    """Columns of a character: 0, 1 or 2. Control characters take none, tabs among them: expand those first."""
    if _is_mark(char) or unicodedata.category(char) == "Cc":
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def display_width(text: str) -> int:
    """Columns of a single line of text."""
    return sum(map(char_width, text))


def clusters(text: str) -> Iterator[str]:
    """The characters of a text, each with the marks that follow it."""
    start = 0
    for index in range(1, len(text)):
        if not _is_mark(text[index]):
            yield text[start:index]
            start = index
    if text:
        yield text[start:]


def take(text: str, columns: int) -> tuple[str, str]:
    """Split a text after as many clusters as fit into so many columns."""
    used = end = 0
    for cluster in clusters(text):
        used += display_width(cluster)
        if used > columns:
            break
        end += len(cluster)
    return text[:end], text[end:]


def truncate(text: str, columns: int, ellipsis: str = ELLIPSIS) -> str:
    """Shorten a line that is too wide; the ellipsis is part of the width, and goes where it does not fit itself."""
    if display_width(text) <= columns:
        return text
    room = columns - display_width(ellipsis)
    if room < 0:
        return take(text, columns)[0]
    return take(text, room)[0] + ellipsis


def pad(text: str, columns: int, align: str = "left") -> str:
    """Fill a line with spaces up to a width; one that is wider stays as it is.

    An odd space of centred text goes to its right.

    Raises:
        ValueError: `align` is not `left`, `right` or `center`.
    """
    space = max(0, columns - display_width(text))
    before = {"left": 0, "right": space, "center": space // 2}
    if align not in before:
        raise ValueError(f"unknown alignment {align!r}")
    return " " * before[align] + text + " " * (space - before[align])
