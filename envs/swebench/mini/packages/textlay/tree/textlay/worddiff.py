"""What was rewritten between two texts, word by word."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby

from .width import clusters

_INVERSE = {"equal": "equal", "replace": "replace", "delete": "insert", "insert": "delete"}


@dataclass(frozen=True)
class Change:
    """A stretch of both texts. All `old` of a diff make up the old text, all `new` the new one."""

    kind: str
    """`equal`, `delete`, `insert` or `replace`."""
    old: str
    new: str


def tokens(text: str) -> list[str]:
    """Words, runs of whitespace, and every other character by itself; joined they are the text."""
    found: list[str] = []
    for kind, group in groupby(clusters(text), _kind):
        found += group if kind == "other" else ["".join(group)]
    return found


def diff(old: str, new: str, *, ignore_space: bool = False, ignore_case: bool = False) -> list[Change]:
    """The changes from one text to another.

    Changes with nothing but whitespace between them are one change.

    Args:
        ignore_space: any run of whitespace equals any other.
        ignore_case: words that differ in case are equal. What is equal may then differ in `old` and `new`.
    """

    def key(token: str) -> str:
        if ignore_space and token.isspace():
            return " "
        return token.casefold() if ignore_case else token

    before, after = tokens(old), tokens(new)
    # Without autojunk=False spaces and frequent words of a long text would not be matched.
    matcher = SequenceMatcher(None, [key(token) for token in before], [key(token) for token in after], autojunk=False)
    return _merged(
        Change(kind, "".join(before[i1:i2]), "".join(after[j1:j2])) for kind, i1, i2, j1, j2 in matcher.get_opcodes()
    )


def render(
    changes: Iterable[Change], deleted: tuple[str, str] = ("[-", "-]"), inserted: tuple[str, str] = ("{+", "+}")
) -> str:
    """The new text with what was changed in brackets, old before new."""
    parts: list[str] = []
    for change in changes:
        if change.kind == "equal":
            parts.append(change.new)
            continue
        if change.old:
            parts += [deleted[0], change.old, deleted[1]]
        if change.new:
            parts += [inserted[0], change.new, inserted[1]]
    return "".join(parts)


def patch(text: str, changes: Iterable[Change]) -> str:
    """The new text of a diff, from its old text.

    Raises:
        ValueError: the text is not exactly the one that the changes start from.
    """
    changes = list(changes)
    if text != "".join(change.old for change in changes):
        raise ValueError("the changes are not of this text")
    return "".join(change.new for change in changes)


def inverse(changes: Iterable[Change]) -> list[Change]:
    """The changes from the new text back to the old one."""
    return [Change(_INVERSE[change.kind], change.new, change.old) for change in changes]


def _kind(cluster: str) -> str:
    if cluster[0].isalnum() or cluster[0] == "_":
        return "word"
    return "space" if cluster[0].isspace() else "other"


def _merged(changes: Iterable[Change]) -> list[Change]:
    """Join changes that have only whitespace between them."""
    merged: list[Change] = []
    for change in changes:
        if change.kind != "equal" and len(merged) > 1 and merged[-1].kind == "equal" and merged[-1].new.isspace():
            gap, first = merged.pop(), merged.pop()
            change = Change("replace", first.old + gap.old + change.old, first.new + gap.new + change.new)
        merged.append(change)
    return merged
