"""Countdown puzzles that have a solution, and the derivations that an expert writes for them.

A puzzle belongs to one split by what it is: a hash of its numbers sets those of `unseen` apart, and a hash of numbers
and target those of `seen`. So the splits cannot share a puzzle, whatever their sizes.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rocknroll.envs.reasoning.config import SPLITS, CountdownConfig
from rocknroll.envs.text import EnvDataError

HELD_OUT = 0.1
"""Share of the sets of numbers that is `unseen`, and of the remaining puzzles that is `seen`."""
PATIENCE = 200
"""Times as many puzzles as asked for that are drawn before there are taken to be too few."""


@dataclass(frozen=True)
class Puzzle:
    """`numbers` are sorted."""

    numbers: tuple[int, ...]
    target: int

    @property
    def id(self) -> str:
        return f"{'-'.join(map(str, self.numbers))}={self.target}"


@dataclass(frozen=True)
class Value:
    """A number, and the expression that it came from."""

    value: int
    text: str

    @property
    def atom(self) -> str:
        """As an operand."""
        return self.text if self.text.isdigit() else f"( {self.text} )"


@lru_cache(maxsize=8)
def puzzles(config: CountdownConfig, split: str) -> tuple[Puzzle, ...]:
    """The puzzles of a split, in an order that follows from the configuration alone.

    Raises:
        EnvDataError: there are not so many different ones.
    """
    wanted = {"train": config.train_puzzles, "seen": config.seen_puzzles, "unseen": config.unseen_puzzles}[split]
    rng = random.Random(f"countdown {config.seed} {split}")
    found: dict[Puzzle, None] = {}
    for _ in range(PATIENCE * wanted):
        if len(found) == wanted:
            break
        puzzle = _draw(config, rng)
        if puzzle is not None and _split_of(puzzle) == split:
            found[puzzle] = None
    if len(found) < wanted:
        raise EnvDataError(
            f"Countdown has {len(found)} different puzzles for `{split}` where {wanted} are asked for: lower"
            f" `{split}_puzzles`, or raise `largest_number`, `largest_value` or `numbers`"
        )
    return tuple(found)


def results(a: int, b: int, largest: int) -> Iterator[tuple[str, int, int, int]]:
    """Operations on two values as (sign, first, second, result): whole, positive, at most `largest`, not idle."""
    high, low = max(a, b), min(a, b)
    if high + low <= largest:
        yield "+", high, low, high + low
    if high > low:
        yield "-", high, low, high - low
    if low > 1 and high * low <= largest:
        yield "*", high, low, high * low
    if low > 1 and high % low == 0:
        yield "/", high, low, high // low


def derivation(puzzle: Puzzle, config: CountdownConfig, rng: random.Random) -> str | None:
    """What the expert writes: attempts that come to something else, marked so, one that succeeds, and the answer.

    The attempts in vain take any operation on any two of the values that are left, until one is left; after each the
    expert may give up, and answers with it. The target is said again where it is compared, which a small model finds
    far easier to learn. None where the puzzle has no solution within the configuration's bounds.
    """
    numbers = [Value(number, str(number)) for number in puzzle.numbers]
    rng.shuffle(numbers)
    said: list[str] = []
    for _ in range(rng.randint(0, config.detours)):
        tried = _attempt(numbers, puzzle.target, config.largest_value, rng, succeed=False)
        if tried is None or f"{tried[0]} no ;" in said:
            continue
        if rng.random() < config.gives_up:
            return " ".join([*said, f"{tried[0]} answer {tried[1]}"])
        said.append(f"{tried[0]} no ;")
    found = _attempt(numbers, puzzle.target, config.largest_value, rng, succeed=True)
    return found and " ".join([*said, f"{found[0]} answer {found[1]}"])


def _attempt(
    numbers: Sequence[Value], target: int, largest: int, rng: random.Random, *, succeed: bool
) -> tuple[str, str] | None:
    """Random operations until one value is left: what is written, and the expression that it stands for.

    None where they come to nothing, or, unless they shall `succeed`, to the target by chance.
    """
    said: list[str] = []
    values = list(numbers)
    while len(values) > 1:
        steps = _steps(values, largest)
        if succeed:
            steps = [step for step in steps if target in reachable(tuple(sorted(v.value for v in step[1])), largest)]
        if not steps:
            return None
        step, values = rng.choice(steps)
        said.append(step)
    if not succeed and values[0].value == target:
        return None
    return f"{' ; '.join(said)} want {target}", values[0].text


def _steps(values: Sequence[Value], largest: int) -> list[tuple[str, list[Value]]]:
    """Every operation on two of the values: what is written, and the values then."""
    steps = []
    for i in range(len(values)):
        for j in range(i + 1, len(values)):
            others = [value for k, value in enumerate(values) if k not in (i, j)]
            for sign, first, second, result in results(values[i].value, values[j].value, largest):
                one, two = (values[i], values[j]) if values[i].value == first else (values[j], values[i])
                made = Value(result, f"{one.atom} {sign} {two.atom}")
                steps.append((f"{first} {sign} {second} = {result}", [*others, made]))
    return steps


@lru_cache(maxsize=1 << 18)
def reachable(values: tuple[int, ...], largest: int) -> frozenset[int]:
    """Every result that all of the sorted values together can have."""
    if len(values) == 1:
        return frozenset(values)
    found: set[int] = set()
    for i in range(len(values)):
        for j in range(i + 1, len(values)):
            others = values[:i] + values[i + 1 : j] + values[j + 1 :]
            for _, _, _, result in results(values[i], values[j], largest):
                found |= reachable(tuple(sorted((*others, result))), largest)
    return frozenset(found)


def _draw(config: CountdownConfig, rng: random.Random) -> Puzzle | None:
    """Random numbers, and the result of random operations on all of them."""
    count = rng.randint(*config.numbers)
    numbers = sorted(rng.randint(1, config.largest_number) for _ in range(count))
    values = numbers[:]
    while len(values) > 1:
        rng.shuffle(values)
        choices = list(results(values[-1], values[-2], config.largest_value))
        if not choices:
            return None
        values[-2:] = [rng.choice(choices)[3]]
    return Puzzle(tuple(numbers), values[0])


def _split_of(puzzle: Puzzle) -> str:
    if _share(str(puzzle.numbers)) < HELD_OUT:
        return SPLITS[2]
    return SPLITS[1] if _share(puzzle.id) < HELD_OUT else SPLITS[0]


def _share(text: str) -> float:
    """A number in [0, 1) that follows from the text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
