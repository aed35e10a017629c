"""Countdown: combine all given numbers by + - * / into the target. One answer, and the episode is over.

The answer is what stands in the last `<answer> … </answer>`, or behind the last word `answer`; whatever comes before it
is thought, and free. It is parsed, never evaluated by Python: integers, the four operations and parentheses, computed
exactly in fractions, and each given number used exactly once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import gymnasium

from rocknroll.envs import spaces
from rocknroll.envs.reasoning.config import CountdownConfig
from rocknroll.envs.text import EnvDataError

LONGEST_ANSWER = 200
"""Characters; a puzzle of four numbers needs fewer than 40."""
_TOKEN = re.compile(r"\s*(\d+|[-+*/()])")
_TAGGED = re.compile(r"<\s*answer\s*>(.*?)<\s*/\s*answer\s*>", re.DOTALL | re.IGNORECASE)
_SAID = re.compile(r"\banswer\b\s*:?", re.IGNORECASE)


class NotAnExpression(ValueError):
    """The text is not an arithmetic expression that counts; says why."""


@dataclass(frozen=True)
class Verdict:
    """What an answer is worth."""

    correct: bool
    well_formed: bool
    """An expression that uses each given number exactly once."""
    why: str


def question(numbers: Sequence[int], target: int) -> str:
    """What the policy reads."""
    return f"numbers {' '.join(map(str, numbers))} target {target}"


def verdict(response: str, numbers: Sequence[int], target: int) -> Verdict:
    """Judge the answer in a response."""
    answer = answer_of(response)
    if answer is None:
        return Verdict(False, False, "there is no answer: say `answer`, and then an expression")
    try:
        value, used = compute(answer)
    except NotAnExpression as error:
        return Verdict(False, False, str(error))
    if Counter(used) != Counter(numbers):
        return Verdict(False, False, f"it uses {sorted(used)} and has to use {sorted(numbers)}, each once")
    if value != target:
        return Verdict(False, True, f"it is {value} and not {target}")
    return Verdict(True, True, "correct")


def answer_of(response: str) -> str | None:
    """The expression that a response gives as its answer; None without one."""
    tagged = _TAGGED.findall(response)
    if tagged:
        return str(tagged[-1])
    said = list(_SAID.finditer(response))
    return response[said[-1].end() :] if said else None


def compute(text: str) -> tuple[Fraction, list[int]]:
    """Value of an expression, and the numbers that it uses, in order.

    Raises:
        NotAnExpression: it is none, divides by zero, or is far longer than any answer.
    """
    if len(text) > LONGEST_ANSWER:
        raise NotAnExpression(f"it is longer than {LONGEST_ANSWER} characters")
    return _Parser(text).whole()


class _Parser:
    """By recursive descent: `sum := product (("+" | "-") product)*`,
    `product := atom (("*" | "/") atom)*`, `atom := number` or `"(" sum ")"`."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0
        self._used: list[int] = []

    def whole(self) -> tuple[Fraction, list[int]]:
        value = self._sum()
        if self._at < len(self._tokens):
            raise NotAnExpression(f"`{self._tokens[self._at]}` does not belong behind an expression")
        return value, self._used

    def _sum(self) -> Fraction:
        value = self._product()
        while self._next() in ("+", "-"):
            sign = 1 if self._take() == "+" else -1
            value += sign * self._product()
        return value

    def _product(self) -> Fraction:
        value = self._atom()
        while self._next() in ("*", "/"):
            if self._take() == "*":
                value *= self._atom()
            elif divisor := self._atom():
                value /= divisor
            else:
                raise NotAnExpression("it divides by zero")
        return value

    def _atom(self) -> Fraction:
        token = self._take()
        if token.isdigit():
            self._used.append(int(token))
            return Fraction(int(token))
        if token != "(":
            raise NotAnExpression(f"`{token}` stands where a number belongs")
        value = self._sum()
        if self._take() != ")":
            raise NotAnExpression("a parenthesis is not closed")
        return value

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        if self._at == len(self._tokens):
            raise NotAnExpression("it ends in the middle")
        self._at += 1
        return self._tokens[self._at - 1]


def _tokens(text: str) -> Iterator[str]:
    position, text = 0, text.strip()
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None or not found[1].isascii():
            raise NotAnExpression(f"`{text[position:].lstrip()[0]}` is not part of arithmetic")
        yield found[1]
        position = found.end()


class CountdownEnv(gymnasium.Env[str, str]):
    """One puzzle, one answer. Reward 1 when it is right, `format_reward` when it only uses the numbers as asked."""

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012

    def __init__(
        self, config: Mapping[str, Any] | None = None, split: str = "train", render_mode: str | None = None
    ) -> None:
        """`config`: fields of `CountdownConfig`. `split`: where puzzles come from when `reset` names none."""
        self.config = CountdownConfig.model_validate(dict(config or {}))
        self.split = split
        self.render_mode = render_mode
        self.observation_space = spaces.text()
        self.action_space = spaces.text()
        self._open = False
        self._text = ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Ask a puzzle: that of `options` (`numbers` and `target`), or one of the split, drawn by the seed.

        Raises:
            EnvDataError: the options are not those of a puzzle.
        """
        super().reset(seed=seed)
        self._numbers, self._target = self._choose(options or {})
        self._open = True
        self._text = question(self._numbers, self._target)
        return self._text, {"won": False}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Judge the response."""
        if not self._open:
            raise gymnasium.error.ResetNeeded("call reset() before step(): a puzzle takes one answer")
        self._open = False
        judged = verdict(action, self._numbers, self._target)
        reward = 1.0 if judged.correct else self.config.format_reward * judged.well_formed
        self._text = judged.why
        return judged.why, reward, True, False, {"won": judged.correct, "invalid_action": not judged.well_formed}

    def render(self) -> str | None:
        """The last observation."""
        return self._text if self.render_mode == "ansi" else None

    def _choose(self, options: Mapping[str, Any]) -> tuple[tuple[int, ...], int]:
        if not options:
            from rocknroll.envs.reasoning.puzzles import puzzles

            found = puzzles(self.config, self.split)
            puzzle = found[int(self.np_random.integers(len(found)))]
            return puzzle.numbers, puzzle.target
        numbers, target = options.get("numbers"), options.get("target")
        if (
            set(options) != {"numbers", "target"}
            or not isinstance(target, int)
            or not isinstance(numbers, list | tuple)
            or not numbers
            or not all(isinstance(number, int) and number >= 0 for number in numbers)
        ):
            raise EnvDataError(
                f"reset got {dict(options)!r}; Countdown takes `numbers`, a list of whole numbers, and `target`, one"
            )
        return tuple(numbers), target
