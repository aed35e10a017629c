"""What a response to a math question gives as its answer, and whether that is a plain number. No mathematics here.

The answer stands in the last `\\boxed{…}` or `<answer>…</answer>`, whichever ends last, or else is the last number that
is said. One answer counts and no other: who names several has given the last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LONGEST_ANSWER = 300
"""Characters. Answers of competition problems have fewer than 100."""
READ_CHARS = 20_000
"""So much of a response's end is looked at: the answer stands there."""

_BOX = re.compile(r"\\\s*f?boxed\s*\{")
_OPENED = re.compile(r"<\s*answer\s*>", re.IGNORECASE)
_CLOSED = re.compile(r"<\s*/\s*answer\s*>", re.IGNORECASE)
_DIGITS = r"(?:\d{1,3}(?:(?:,|\\,|\{,\}|\\!,)\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+"
_PLAIN = re.compile(rf"(?<![\w.])(?:(?<![\w)\]}}])(?<![\d)\]}}]\s)-\s?)?(?:{_DIGITS})(?:\s?/\s?\d+)?(?![\w/])\s?%?")
_FRACTION = rf"\\[dt]?frac\s*(?:\d|\{{\s*-?\s*(?:{_DIGITS})\s*\}})\s*(?:\d|\{{\s*(?:{_DIGITS})\s*\}})"
_LITERAL = re.compile(
    rf"""
    (?:[A-Za-z]\s*=\s*)?                                     # x =
    (?P<value>
        [-+−]?\s*(?:\\?[$€£¥])?\s*
        (?:
            (?:\d+\s*)?{_FRACTION}                           # 1\frac{{1}}{{2}}
          | (?:{_DIGITS})\s*/\s*(?:{_DIGITS})
          | (?:{_DIGITS})\s*(?:\\times|\\cdot|×)\s*10\s*\^\s*\{{?\s*-?\d{{1,3}}\s*\}}?
          | (?:{_DIGITS})(?:[eE][-+]?\d{{1,3}})?
        )
        \s*\\?%?
    )
    (?:\s*(?:°|\^\s*\{{?\s*\\circ\s*\}}?))?
    (?:\s*\\(?:text|mathrm|textrm|mbox)\s*\{{[^{{}}]*\}}(?:\s*\^\s*\{{?[23]\}}?)?
      | \s*(?!pi\b|times|mod|log|sqrt|ln\b)[A-Za-z]{{2,}}[A-Za-z ./]*[²³]?(?:\^\s*\{{?[23]\}}?)?
      | \s+[mgshLNJVWK][²³]?(?:\^\s*\{{?[23]\}}?)?
    )?                                                       # a unit
    \s*\.?
    """,
    re.VERBOSE,
)
_WRAPPED = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"))


@dataclass(frozen=True)
class Answer:
    """The text of an answer; or why there is none."""

    text: str = ""
    problem: str = ""
    marked: bool = True
    """In a box or between tags; False: the last number of the response."""


def answer_of(response: str) -> Answer:
    """The answer that a response gives."""
    end = response[-READ_CHARS:]
    found = _marked(end)
    if found is None:
        numbers = list(_PLAIN.finditer(end))
        if not numbers:
            return Answer(problem=r"there is no answer: say it in \boxed{…} or between <answer> and </answer>")
        found = Answer(numbers[-1].group(), marked=False)
    if len(found.text) > LONGEST_ANSWER:
        return Answer(problem=f"the answer is longer than {LONGEST_ANSWER} characters")
    return found


def number_of(text: str) -> str | None:
    """The number that a text consists of, without its name and unit; None for anything that has to be worked out.

    `x = 1,200 \\text{ m}` is `1,200`; `12 * 3` and `2, 3` are no numbers.
    """
    found = _LITERAL.fullmatch(text.strip())
    return None if found is None else re.sub(r"\\?[$€£¥]|\s", "", found["value"]).replace("−", "-")


def bare(text: str) -> str:
    """Without the signs that only say where mathematics begins and ends, and without a box around it."""
    text = text.strip()
    inside = _last_box(text)
    if inside is not None and inside.text:
        text = inside.text.strip()
    for opening, closing in _WRAPPED:
        if len(text) > len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing):
            text = text[len(opening) : -len(closing)].strip()
    return re.sub(r"\\(?:left|right)(?![a-zA-Z])|\\[!;]", "", text).strip()


def _marked(text: str) -> Answer | None:
    """The last box or pair of tags; a box inside of tags is what they enclose."""
    boxes, closings = list(_BOX.finditer(text)), list(_CLOSED.finditer(text))
    if closings and (not boxes or closings[-1].start() > boxes[-1].start()):
        openings = [tag for tag in _OPENED.finditer(text) if tag.end() <= closings[-1].start()]
        if openings:
            return _filled(bare(text[openings[-1].end() : closings[-1].start()]))
    return _last_box(text)


def _last_box(text: str) -> Answer | None:
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return None
    start, depth = boxes[-1].end(), 1
    for position in range(start, len(text)):
        depth += (text[position] == "{") - (text[position] == "}")
        if depth == 0:
            return _filled(text[start:position].strip())
    return Answer(problem="the last box is not closed")


def _filled(text: str) -> Answer:
    return Answer(text) if text else Answer(problem="the answer is empty")
