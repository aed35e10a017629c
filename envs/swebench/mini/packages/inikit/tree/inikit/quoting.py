"""One line of a value: its text, perhaps in quotes, and the comment behind it.

What `write_piece` gives is read back by `read_piece` as the same text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

BLANK = " \t"
COMMENT = ("#", ";")
INLINE = re.compile(r"[ \t][#;]")

_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPES = {"\\": "\\", '"': '"', "n": "\n", "r": "\r", "t": "\t"}
_ESCAPED = str.maketrans({meaning: "\\" + letter for letter, meaning in _ESCAPES.items()})


class Piece(NamedTuple):
    """A line of a value; `comment` starts with the blanks in front of it, or is empty."""

    text: str
    comment: str
    quoted: bool


def read_piece(source: str) -> Piece:
    """Read what stands behind `=`, or on a line that continues a value.

    Raises:
        ValueError: a quote is not closed, is followed by text, or holds an unknown escape.
    """
    start = source.strip(BLANK)
    if not start.startswith('"'):
        match = INLINE.search(source)
        text = source[: match.start()].rstrip(BLANK) if match else source.rstrip(BLANK)
        return Piece(text.lstrip(BLANK), source[len(text) :].rstrip(BLANK), quoted=False)
    match = _QUOTED.match(start)
    if match is None:
        raise ValueError("the quote is not closed")
    comment = start[match.end() :]
    if comment and not comment.lstrip(BLANK).startswith(COMMENT):
        raise ValueError("there is text behind the closing quote")
    return Piece(_unescaped(match[1]), " " + comment if comment.startswith(COMMENT) else comment, quoted=True)


def _unescaped(text: str) -> str:
    try:
        return re.sub(r"\\(.)", lambda match: _ESCAPES[match[1]], text, flags=re.DOTALL)
    except KeyError as error:
        raise ValueError(f"unknown escape: backslash and {error}") from None


def write_piece(text: str) -> str:
    """Text as it stands in a file, in quotes where it would be misread without."""
    outer = text != text.strip(BLANK) or text.startswith(('"', *COMMENT))
    if outer or INLINE.search(text) or "\r" in text:
        return '"' + text.translate(_ESCAPED) + '"'
    return text
