"""Paragraphs broken into lines.

A text is words and the gaps between them; a word is syllables, which lines may end after. Gaps are kept within a line
and dropped where it is broken. No-break spaces are part of a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .tabs import expand_tabs
from .width import clusters, display_width, take

SOFT_HYPHEN = "\u00ad"
_WORD = re.compile(r"([ \t\n\r\f\v]*)([^ \t\n\r\f\v]+)")
_BLANK_LINES = re.compile(r"\n(?:[ \t\r\f\v]*\n)+")


@dataclass(frozen=True)
class _Syllable:
    text: str
    tail: str = ""
    """What a line that ends here shows after the text."""


def wrap(
    text: str,
    width: int = 70,
    *,
    initial: str = "",
    subsequent: str = "",
    tabsize: int = 8,
    hyphens: bool = True,
    break_long: bool = True,
) -> list[str]:
    """Lines of a paragraph, none wider than `width`.

    A line break in the text, with the space around it, counts as one space. Other gaps keep their spaces, and their
    tabs reach to the next tab stop of the line that they end up on.

    Args:
        initial: what the first line begins with, part of its width.
        subsequent: what all other lines begin with.
        tabsize: columns from one tab stop to the next, counted from the left end of the line.
        hyphens: words may be broken after a hyphen between letters, and at soft hyphens. A soft hyphen shows as `-`
            at the end of a line and is left out elsewhere.
        break_long: what is too wide for a line of its own is broken where the line is full, without a hyphen. A
            single cluster that is wider than the line stands alone. If false, such a word sticks out.

    Raises:
        ValueError: an indent leaves no room for text.
    """
    initial, subsequent = expand_tabs(initial, tabsize), expand_tabs(subsequent, tabsize)
    if max(display_width(initial), display_width(subsequent)) >= width:
        raise ValueError(f"no room for text in {width} columns")
    lines: list[str] = []
    line, bare = initial, True
    for gap, word in _words(text):
        syllables = _syllables(word, hyphens)
        while syllables:
            head = line if bare else line + expand_tabs(gap, tabsize, display_width(line))
            room = width - display_width(head)
            fitting = _fitting(syllables, room)
            if not fitting and bare:
                fitting = 1
                if break_long:
                    syllables[:1] = _broken(syllables[0], room)
            if fitting:
                line, bare = head + "".join(syllable.text for syllable in syllables[:fitting]), False
                tail = syllables[fitting - 1].tail
                del syllables[:fitting]
                if not syllables:
                    continue
                line += tail
            lines.append(line)
            line, bare = subsequent, True
    return lines if bare else [*lines, line]


def fill(text: str, width: int = 70, **options: Any) -> str:
    """The paragraphs of a text, which blank lines part, each wrapped with the options of `wrap`."""
    paragraphs = (wrap(paragraph, width, **options) for paragraph in _BLANK_LINES.split(text))
    return "\n\n".join("\n".join(lines) for lines in paragraphs if lines)


def list_item(text: str, marker: str = "- ", width: int = 70, **options: Any) -> str:
    """A paragraph after a marker, with its further lines below its first word."""
    return "\n".join(wrap(text, width, initial=marker, subsequent=" " * display_width(marker), **options))


def _words(text: str) -> Iterator[tuple[str, str]]:
    """The words of a text, each after the gap before it."""
    for match in _WORD.finditer(text):
        gap, word = match.groups()
        yield gap if not gap.strip(" \t") else " ", word


def _syllables(word: str, hyphens: bool) -> list[_Syllable]:
    if not hyphens:
        word = word.replace(SOFT_HYPHEN, "")
        return [_Syllable(word)] if word else []
    syllables: list[_Syllable] = []
    for part in word.split(SOFT_HYPHEN):
        for text in _hyphenated(part):
            syllables.append(_Syllable(text))
        if part and not part.endswith("-"):
            syllables[-1] = _Syllable(syllables[-1].text, "-")
    if syllables:
        syllables[-1] = _Syllable(syllables[-1].text)
    return syllables


def _hyphenated(part: str) -> list[str]:
    """Split after the hyphens that stand between letters."""
    marked = list(clusters(part))
    found, start = [], 0
    for index in range(1, len(marked) - 1):
        if marked[index] == "-" and marked[index - 1][0].isalpha() and marked[index + 1][0].isalpha():
            found.append("".join(marked[start : index + 1]))
            start = index + 1
    return [*found, "".join(marked[start:])] if part else []


def _fitting(syllables: list[_Syllable], room: int) -> int:
    """How many syllables a line takes whose text may be `room` columns wide."""
    fitting = used = 0
    for count, syllable in enumerate(syllables, 1):
        used += display_width(syllable.text)
        if used + display_width(syllable.tail) <= room:
            fitting = count
    return fitting


def _broken(syllable: _Syllable, room: int) -> list[_Syllable]:
    """A syllable that fits no line, broken where this one is full."""
    first = take(syllable.text, room)[0] or next(clusters(syllable.text))
    rest = syllable.text[len(first) :]
    return [_Syllable(first), _Syllable(rest, syllable.tail)] if rest else [_Syllable(first)]
