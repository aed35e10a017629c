"""The program in a response, and whether what it printed or returned is what it should be. Nothing is run here."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LONGEST_PROGRAM = 65_536
"""Characters."""
READ_CHARS = 4 * LONGEST_PROGRAM
"""So much of a response's end is looked at."""

_FENCE = re.compile(r"` ?` ?`")
"""Policies with a word tokenizer put spaces between the three signs."""
_PYTHON = re.compile(r"\s*(?:python|py)\s?3?(?=\s)", re.IGNORECASE)
_FRACTIONAL = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?")


@dataclass(frozen=True)
class Candidate:
    """A program to try; or why there is none."""

    source: str = ""
    problem: str = ""


def candidate_of(response: str) -> Candidate:
    """What stands in the last ```python block that is closed."""
    inside = _FENCE.split(response[-READ_CHARS:])[1:-1:2]
    blocks = [(label, block) for block in inside if (label := _PYTHON.match(block))]
    if not blocks:
        return Candidate(problem="there is no ```python block")
    label, block = blocks[-1]
    source = block[label.end() :].strip()
    if not source:
        return Candidate(problem="the last ```python block is empty")
    if len(source) > LONGEST_PROGRAM:
        return Candidate(problem=f"the program is longer than {LONGEST_PROGRAM} characters")
    return Candidate(source)


def same_output(expected: str, printed: bytes, tolerance: float) -> bool:
    """Whether a program printed what it should: the same words in the same lines.

    Space at the ends of lines and empty lines at the end do not matter; fractional numbers may differ by `tolerance`.
    """
    try:
        said = printed.decode()
    except UnicodeDecodeError:
        return False
    wanted, got = _lines(expected), _lines(said)
    return len(wanted) == len(got) and all(_same_line(a, b, tolerance) for a, b in zip(wanted, got, strict=True))


def same_value(expected: Any, got: Any, tolerance: float) -> bool:
    """Whether a function returned what it should; both are JSON.

    Some data sets have each result in a list of its own, so `[3]` may be 3, too.
    """
    if _same(expected, got, tolerance):
        return True
    return isinstance(expected, list) and len(expected) == 1 and _same(expected[0], got, tolerance)


def returned(text: str) -> Any:
    """A value that a function returned, from its JSON.

    Raises:
        ValueError: it is none that can be read.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _same(expected: Any, got: Any, tolerance: float) -> bool:
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    if isinstance(expected, int) and isinstance(got, int | float):
        return expected == got
    if isinstance(expected, float) and isinstance(got, int | float):
        return _close(expected, got, tolerance)
    if isinstance(expected, list) and isinstance(got, list):
        return len(expected) == len(got) and all(_same(a, b, tolerance) for a, b in zip(expected, got, strict=True))
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        return expected.keys() == got.keys() and all(_same(expected[key], got[key], tolerance) for key in expected)
    return type(expected) is type(got) and bool(expected == got)


def _close(expected: float, got: float, tolerance: float) -> bool:
    try:
        return math.isclose(expected, got, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:  # a whole number beyond all floats
        return False


def _lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.rstrip().splitlines()]


def _same_line(expected: list[str], got: list[str], tolerance: float) -> bool:
    return len(expected) == len(got) and all(_same_word(a, b, tolerance) for a, b in zip(expected, got, strict=True))


def _same_word(expected: str, got: str, tolerance: float) -> bool:
    if expected == got:
        return True
    if not _FRACTIONAL.fullmatch(expected):
        return False
    try:
        return _close(float(expected), float(got), tolerance)
    except ValueError:
        return False
