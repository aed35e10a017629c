"""Programming exercises that are made from a seed: keep some numbers of a list, change them, and take something of all.

An exercise belongs to one split by what it is: a hash of its three operations sets those of `unseen` apart, and a hash
of the whole exercise those of `seen`. Expected results come from functions here, never from the solution's text.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rocknroll.envs.reasoning.code_config import CodeConfig
from rocknroll.envs.reasoning.code_problem import Case, CodeProblem
from rocknroll.envs.reasoning.config import SPLITS
from rocknroll.envs.reasoning.sources import share
from rocknroll.envs.text import EnvDataError

HELD_OUT = 0.1
"""Share of the combinations of operations that is `unseen`, and of the remaining exercises that is `seen`."""
PATIENCE = 20_000
"""Draws in a row without a new exercise after which there are taken to be no more."""
LARGEST_K = 9
CASES = 6
LONGEST_LIST = 8
FORMS = ("program", "function")

Number = Callable[[int, int], int]


@dataclass(frozen=True)
class Operation:
    """One of the three parts: how it is said, how it is written in Python, and what it does."""

    said: str
    """`{k}` is the exercise's number for it."""
    written: str
    does: Callable[..., Any]

    @property
    def has_number(self) -> bool:
        return "{k}" in self.said


KEEP: Mapping[str, Operation] = {
    "all": Operation("all numbers", "", lambda n, k: True),
    "above": Operation("the numbers larger than {k}", "if n > {k}", lambda n, k: n > k),
    "below": Operation("the numbers smaller than {k}", "if n < {k}", lambda n, k: n < k),
    "even": Operation("the even numbers", "if not n % 2", lambda n, k: n % 2 == 0),
    "odd": Operation("the odd numbers", "if n % 2", lambda n, k: n % 2 == 1),
    "multiples": Operation("the numbers that {k} divides", "if not n % {k}", lambda n, k: n % k == 0),
}
CHANGE: Mapping[str, Operation] = {
    "as_is": Operation("as they are", "n", lambda n, k: n),
    "times": Operation("times {k}", "n * {k}", lambda n, k: n * k),
    "plus": Operation("plus {k}", "n + {k}", lambda n, k: n + k),
    "minus": Operation("minus {k}", "n - {k}", lambda n, k: n - k),
    "squared": Operation("squared", "n * n", lambda n, k: n**2),
    "remainder": Operation("modulo {k}", "n % {k}", lambda n, k: n % k),
}
TAKE: Mapping[str, Operation] = {
    "sum": Operation("their sum", "sum ( {x} )", sum),
    "largest": Operation("the largest, or 0 without any", "max ( ( {x} ) , default = 0 )", lambda v: max(v, default=0)),
    "smallest": Operation(
        "the smallest, or 0 without any", "min ( ( {x} ) , default = 0 )", lambda v: min(v, default=0)
    ),
    "count": Operation("how many they are", "len ( [ {x} ] )", len),
    "different": Operation("how many different ones they are", "len ( { {x} } )", lambda v: len(set(v))),
    "first": Operation("the first, or 0 without any", "[ * ( {x} ) , 0 ] [ 0 ]", lambda v: v[0] if v else 0),
    "last": Operation("the last, or 0 without any", "[ 0 , * ( {x} ) ] [ - 1 ]", lambda v: v[-1] if v else 0),
    "sorted": Operation("them in ascending order", "sorted ( {x} )", sorted),
    "falling": Operation("them in descending order", "sorted ( {x} ) [ : : - 1 ]", lambda v: sorted(v, reverse=True)),
    "backwards": Operation("them in reverse order", "[ {x} ] [ : : - 1 ]", lambda v: v[::-1]),
    "twice": Operation("their sum times 2", "2 * sum ( {x} )", lambda v: sum(v) * 2),
    "spread": Operation(
        "the largest minus the smallest, or 0 without any",
        "max ( ( {x} ) , default = 0 ) - min ( ( {x} ) , default = 0 )",
        lambda v: max(v) - min(v) if v else 0,
    ),
}
LISTS = frozenset({"sorted", "falling", "backwards"})


@dataclass(frozen=True)
class Exercise:
    """Form and operations; the two numbers are 0 where an operation has none."""

    form: str
    keep: str
    keep_k: int
    change: str
    change_k: int
    take: str

    @property
    def id(self) -> str:
        return f"{self.form}-{self.keep}-{self.keep_k}-{self.change}-{self.change_k}-{self.take}"

    @property
    def question(self) -> str:
        keep, change = KEEP[self.keep].said.format(k=self.keep_k), CHANGE[self.change].said.format(k=self.change_k)
        task = f"Take {keep}, {change}, and {{}} {TAKE[self.take].said}."
        if self.form == "program":
            return f"Read whole numbers from one line. {task.format('print')}"
        return f"Write a function f(xs) of a list of whole numbers. {task.format('return')}"

    @property
    def solution(self) -> str:
        """Python in one line, with a space between any two signs."""
        source = "map ( int , input ( ) . split ( ) )" if self.form == "program" else "xs"
        keep, change = KEEP[self.keep].written, CHANGE[self.change].written
        chosen = f"{change.format(k=self.change_k)} for n in {{source}} {keep.format(k=self.keep_k)}".strip()
        written = TAKE[self.take].written
        if self.form == "function":
            return f"def f ( xs ) : return {written.replace('{x}', chosen.format(source=source))}"
        star = "* " if self.take in LISTS else ""
        if written.count("{x}") == 1:
            return f"print ( {star}{written.replace('{x}', chosen.format(source=source))} )"
        # A line can be read only once.
        return f"xs = [ * {source} ] ; print ( {star}{written.replace('{x}', chosen.format(source='xs'))} )"

    def result(self, numbers: list[int]) -> Any:
        """What is right for these numbers."""
        kept = [n for n in numbers if KEEP[self.keep].does(n, self.keep_k)]
        return TAKE[self.take].does([CHANGE[self.change].does(n, self.change_k) for n in kept])

    def problem(self) -> CodeProblem:
        """With its tests, which follow from the exercise alone."""
        rng = random.Random(self.id)
        return CodeProblem(
            id=self.id,
            kind=f"{self.take} {self.form}",
            question=self.question,
            cases=tuple(self._case(rng) for _ in range(CASES)),
            function="f" if self.form == "function" else "",
            solution=self.solution,
        )

    def _case(self, rng: random.Random) -> Case:
        numbers = [rng.randint(-20, 50) for _ in range(rng.randint(1, LONGEST_LIST))]
        result = self.result(numbers)
        if self.form == "function":
            return Case([numbers], result)
        printed = " ".join(map(str, result)) if isinstance(result, list) else str(result)
        return Case(" ".join(map(str, numbers)) + "\n", printed)


def exercises(config: CodeConfig, split: str) -> tuple[Exercise, ...]:
    """The exercises of a split, in an order that follows from the configuration alone.

    Raises:
        EnvDataError: there are not so many different ones.
    """
    wanted = {"train": config.train_exercises, "seen": config.seen_exercises, "unseen": config.unseen_exercises}[split]
    rng = random.Random(f"code {config.seed} {split}")
    found: dict[Exercise, None] = {}
    in_vain = 0
    while len(found) < wanted and in_vain < PATIENCE:
        exercise = _draw(rng)
        in_vain += 1
        if exercise not in found and split_of(exercise) == split:
            found[exercise] = None
            in_vain = 0
    if len(found) < wanted:
        raise EnvDataError(
            f"there are {len(found)} different code exercises for `{split}` where {wanted} are asked for: lower"
            f" `{split}_exercises`, or give `data`"
        )
    return tuple(found)


def split_of(exercise: Exercise) -> str:
    """Which split an exercise belongs to, in every configuration."""
    if share(f"{exercise.keep} {exercise.change} {exercise.take}") < HELD_OUT:
        return SPLITS[2]
    return SPLITS[1] if share(exercise.id) < HELD_OUT else SPLITS[0]


def words() -> Iterator[str]:
    """Everything that questions and solutions may say."""
    for operations in (KEEP, CHANGE, TAKE):
        for operation in operations.values():
            yield from operation.said.replace("{k}", "").split()
            yield from operation.written.replace("{k}", "").replace("{x}", "").split()
    for form in FORMS:
        exercise = Exercise(form, "all", 0, "as_is", 0, "spread")
        yield from exercise.question.split()
        yield from exercise.solution.split()
    yield from map(str, range(LARGEST_K + 1))


def _draw(rng: random.Random) -> Exercise:
    keep, change = rng.choice(tuple(KEEP)), rng.choice(tuple(CHANGE))
    keep_k, change_k = (
        rng.randint(2, LARGEST_K) if operation.has_number else 0 for operation in (KEEP[keep], CHANGE[change])
    )
    return Exercise(rng.choice(FORMS), keep, keep_k, change, change_k, rng.choice(tuple(TAKE)))
