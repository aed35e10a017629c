"""Whether an answer is right, by the library math-verify. Imports sympy: for the process that the environment runs in.

The library takes `12 * 3` for 36 and `Pairs` for `Paris`, because it works expressions out and words are products of
letters. So a question whose answer is a number wants a number, one whose answer is a word wants that word, and what
stands in the question is no answer to it.
"""

from __future__ import annotations

import logging
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from math_verify import parse, verify

from rocknroll.envs.reasoning.math_answer import answer_of, bare, number_of

AGAIN_S = 0.2
"""Libraries that swallow the first interruption get another one after so long."""
_WORDS = re.compile(r"(?=.*[^\W\d_]{4})[^\W\d_]+(?:[ -][^\W\d_]+)*")
"""With one of four letters at least: `xyz` and `x - y` are mathematics."""

# It warns of having no time limit of its own: the whole comparison has one here.
logging.getLogger("math_verify").setLevel(logging.CRITICAL)


@dataclass(frozen=True)
class Verdict:
    """What a response is worth."""

    correct: bool
    answered: bool
    """There is an answer in it."""
    why: str


def verdict(response: str, question: str, gold: str, timeout_s: float) -> Verdict:
    """Judge the answer in a response. Whatever the libraries raise makes it wrong.

    Raises:
        RuntimeError: this is not the main thread, so a comparison could not be ended.
    """
    said = answer_of(response)
    if said.problem:
        return Verdict(False, False, said.problem)
    answer, gold = bare(said.text), bare(gold)
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            "answers are compared under a timer, which only the main thread of a process has; play math there, or in"
            " a sandbox, as `roll` does"
        )
    number = number_of(gold)
    if number is not None:
        given = number_of(answer)
        if given is None:
            return Verdict(False, True, f"`{answer}` is not a number, worked out")
        return _compared(given, number, timeout_s)
    if not said.marked:
        return Verdict(False, False, r"the answer is no number, so it has to be in \boxed{…} or <answer>…</answer>")
    if _WORDS.fullmatch(_plain(gold)):
        right = _plain(answer).casefold() == _plain(gold).casefold()
        return Verdict(right, True, "correct" if right else f"`{answer}` is another word")
    if _squeezed(answer) != _squeezed(gold) and _squeezed(answer) in _squeezed(question):
        return Verdict(False, True, f"`{answer}` only repeats the question")
    return _compared(answer, gold, timeout_s)


def _compared(answer: str, gold: str, timeout_s: float) -> Verdict:
    try:
        with _at_most(timeout_s):
            right = bool(verify(_parsed(gold), _parsed(answer), timeout_seconds=None))
    except _Overdue:
        return Verdict(False, True, f"`{answer}` takes longer than {timeout_s:g} s to compare")
    except Exception as error:  # sympy raises anything on what it does not understand
        return Verdict(False, True, f"`{answer}` cannot be understood: {type(error).__name__}")
    return Verdict(right, True, "correct" if right else f"`{answer}` is wrong")


def _parsed(text: str) -> list[Any]:
    return list(parse(f"${text}$", parsing_timeout=None))


class _Overdue(BaseException):
    """The time is up; no `except Exception` in a library keeps it."""


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raise `_Overdue` in what runs inside when the time is up, again and again until it ends."""
    armed = True

    def interrupt(number: int, frame: FrameType | None) -> None:
        if armed:
            raise _Overdue

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    try:
        try:
            yield
        finally:
            armed = False  # from here on nothing interrupts the end of the timer itself
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _plain(text: str) -> str:
    """Without `\\text{…}` around it."""
    found = re.fullmatch(r"\\(?:text|mathrm|textbf|mbox)\s*\{([^{}]*)\}", text)
    return (found[1] if found else text).strip().rstrip(".")


def _squeezed(text: str) -> str:
    return re.sub(r"[\s$]", "", text)


# The tables of the grammar are made at its first use: here, once for all processes that are forked from this one.
_parsed("1")
