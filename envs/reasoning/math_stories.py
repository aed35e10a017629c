"""Arithmetic word problems that are made from a seed, and how they are worked out, step by step.

A problem belongs to one split by what it is: a hash of its kind and numbers sets those of `unseen` apart, and a hash of
the whole story those of `seen`. So the splits cannot share a problem, whatever their sizes and seeds.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rocknroll.envs.reasoning.config import SPLITS
from rocknroll.envs.reasoning.math_config import MathConfig
from rocknroll.envs.reasoning.sources import share
from rocknroll.envs.text import EnvDataError

HELD_OUT = 0.1
"""Share of the numbers of a kind that is `unseen`, and of the remaining stories that is `seen`."""
PATIENCE = 20_000
"""Draws in a row without a new problem after which there are taken to be no more."""

PEOPLE = ("Ann", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ida", "Jon", "Kai", "Lea")
THINGS = ("apples", "books", "cards", "coins", "eggs", "figs", "nuts", "pens", "plums", "rocks", "shells", "stamps")
LETTERS = "abcd"

Step = tuple[str, str, str]
"""Left, sign, right: a letter is a number of the question, `#1` the first result, digits a constant."""


@dataclass(frozen=True)
class Kind:
    """A sort of problem. The last step's result is its answer."""

    text: str
    steps: tuple[Step, ...]

    @property
    def count(self) -> int:
        """Numbers in the question."""
        return sum(f"{{{letter}}}" in self.text for letter in LETTERS)


KINDS: dict[str, Kind] = {
    "gain": Kind(
        "{who} has {a} {things} and gets {b} more. How many {things} does {who} have now?",
        (("a", "+", "b"),),
    ),
    "loss": Kind(
        "{who} has {a} {things} and gives {b} of them away. How many {things} are left?",
        (("a", "-", "b"),),
    ),
    "boxes": Kind(
        "There are {a} boxes with {b} {things} in each. How many {things} are there?",
        (("a", "*", "b"),),
    ),
    "shares": Kind(
        "{who} divides {a} {things} equally among {b} friends. How many {things} does each friend get?",
        (("a", "/", "b"),),
    ),
    "difference": Kind(
        "{who} has {a} {things} and {other} has {b}. How many more {things} does {who} have?",
        (("a", "-", "b"),),
    ),
    "days": Kind(
        "{who} finds {a} {things} on Monday, {b} on Tuesday and {c} on Friday. How many {things} is that?",
        (("a", "+", "b"), ("#1", "+", "c")),
    ),
    "trade": Kind(
        "{who} has {a} {things}, gets {b} from {other} and loses {c}. How many {things} does {who} have now?",
        (("a", "+", "b"), ("#1", "-", "c")),
    ),
    "loose": Kind(
        "There are {a} boxes with {b} {things} in each, and {c} loose ones. How many {things} are there?",
        (("a", "*", "b"), ("#1", "+", "c")),
    ),
    "broken": Kind(
        "{who} buys {a} boxes of {b} {things} and finds {c} of them broken. How many {things} are good?",
        (("a", "*", "b"), ("#1", "-", "c")),
    ),
    "change": Kind(
        "{who} buys {a} {things} for {b} cents each and pays with {c} cents. How many cents does {who} get back?",
        (("a", "*", "b"), ("c", "-", "#1")),
    ),
    "together": Kind(
        "{who} has {a} {things} and {other} has {b} times as many. How many {things} do they have together?",
        (("a", "*", "b"), ("a", "+", "#1")),
    ),
    "fence": Kind(
        "A garden is {a} meters long and {b} meters wide. How many meters of fence go around it?",
        (("a", "+", "b"), ("#1", "*", "2")),
    ),
    "rest": Kind(
        "{who} has {a} {things}, keeps {b} and divides the others equally among {c} friends. How many {things} does"
        " each friend get?",
        (("a", "-", "b"), ("#1", "/", "c")),
    ),
    "half": Kind(
        "{who} has {a} {things}, gives half of them to {other} and then gets {b}. How many {things} does {who} have"
        " now?",
        (("a", "/", "2"), ("#1", "+", "b")),
    ),
    "pairs": Kind(
        "{who} has {a} {things} and {other} has {b}. They put them together in bags of {c}. How many bags is that?",
        (("a", "+", "b"), ("#1", "/", "c")),
    ),
    "prices": Kind(
        "{who} buys {a} {things} for {b} cents each and a box for {c} cents, and has {d} cents left. How many cents did"
        " {who} have?",
        (("a", "*", "b"), ("#1", "+", "c"), ("#2", "+", "d")),
    ),
}


@dataclass(frozen=True)
class Story:
    """One problem: a kind, its numbers, and whom and what it is about, as far as its question says so."""

    kind: str
    numbers: tuple[int, ...]
    who: str
    other: str
    things: str

    @property
    def id(self) -> str:
        return "-".join([self.kind, *map(str, self.numbers), self.who, self.other, self.things])

    @classmethod
    def of(cls, story_id: str) -> Story:
        """The story that has this id."""
        kind, *numbers, who, other, things = story_id.split("-")
        return cls(kind, tuple(map(int, numbers)), who, other, things)

    @property
    def question(self) -> str:
        given = dict(zip(LETTERS, self.numbers, strict=False))
        return KINDS[self.kind].text.format(who=self.who, other=self.other, things=self.things, **given)

    @property
    def answer(self) -> int:
        return results(KINDS[self.kind], self.numbers)[-1]

    @property
    def derivation(self) -> str:
        """What an expert writes: `3 * 4 = 12 ; 12 + 5 = 17 answer 17`."""
        kind = KINDS[self.kind]
        done = results(kind, self.numbers)
        said = [
            f"{_value(left, self.numbers, done)} {sign} {_value(right, self.numbers, done)} = {result}"
            for (left, sign, right), result in zip(kind.steps, done, strict=True)
        ]
        return f"{' ; '.join(said)} answer {done[-1]}"


class NotWhole(ArithmeticError):
    """A step has no whole result of 0 or more."""


def results(kind: Kind, numbers: Sequence[int]) -> list[int]:
    """The result of every step.

    Raises:
        NotWhole: one of them is a fraction or negative.
    """
    done: list[int] = []
    for left, sign, right in kind.steps:
        first, second = _value(left, numbers, done), _value(right, numbers, done)
        if (sign == "-" and first < second) or (sign == "/" and (second == 0 or first % second)):
            raise NotWhole(f"{first} {sign} {second}")
        operations = {"+": first + second, "-": first - second, "*": first * second}
        done.append(first // second if sign == "/" else operations[sign])
    return done


def stories(config: MathConfig, split: str) -> tuple[Story, ...]:
    """The problems of a split, in an order that follows from the configuration alone.

    Raises:
        EnvDataError: there are not so many different ones.
    """
    wanted = {"train": config.train_problems, "seen": config.seen_problems, "unseen": config.unseen_problems}[split]
    rng = random.Random(f"math {config.seed} {split}")
    found: dict[Story, None] = {}
    in_vain = 0
    while len(found) < wanted and in_vain < PATIENCE:
        story = _draw(config, rng)
        in_vain += 1
        if story is not None and story not in found and split_of(story) == split:
            found[story] = None
            in_vain = 0
    if len(found) < wanted:
        raise EnvDataError(
            f"there are {len(found)} different math problems for `{split}` where {wanted} are asked for: lower"
            f" `{split}_problems`, or raise `largest_number` or `largest_value`"
        )
    return tuple(found)


def retold(story: Story, seed: int) -> Story:
    """The same numbers in another story; of a training problem, one that is not held out."""
    rng = random.Random(f"{story.id} {seed}")
    while True:
        told = _told(story.kind, story.numbers, rng)
        if split_of(told) == split_of(story):
            return told


def split_of(story: Story) -> str:
    """Which split a problem belongs to, in every configuration."""
    if share(f"{story.kind} {story.numbers}") < HELD_OUT:
        return SPLITS[2]
    return SPLITS[1] if share(story.id) < HELD_OUT else SPLITS[0]


def words() -> Iterator[str]:
    """Everything that questions and derivations may say, numbers apart."""
    yield from PEOPLE
    yield from THINGS
    yield from ("+", "-", "*", "/", "=", ";", "answer")
    for kind in KINDS.values():
        yield from re.sub(r"\{\w+\}", " ", kind.text).split()


def _draw(config: MathConfig, rng: random.Random) -> Story | None:
    """A problem, or None where the numbers that came up are none."""
    name = rng.choice(tuple(KINDS))
    kind = KINDS[name]
    # The product of two large numbers is hardly ever small enough: a small one among them comes up more often.
    most = [rng.choice((config.largest_number, max(5, config.largest_number // 3))) for _ in range(kind.count)]
    numbers = tuple(rng.randint(2, limit) for limit in most)
    try:
        done = results(kind, numbers)
    except NotWhole:
        return None
    if max(done) > config.largest_value:
        return None
    return _told(name, numbers, rng)


def _told(kind: str, numbers: tuple[int, ...], rng: random.Random) -> Story:
    """A story for the numbers. What its question does not say is left out: two stories are two questions."""
    who, other = rng.sample(PEOPLE, 2)
    parts = {"who": who, "other": other, "things": rng.choice(THINGS)}
    return Story(
        kind, numbers, **{key: part if f"{{{key}}}" in KINDS[kind].text else "" for key, part in parts.items()}
    )


def _value(said: str, numbers: Sequence[int], done: Sequence[int]) -> int:
    if said.startswith("#"):
        return done[int(said[1:]) - 1]
    return numbers[LETTERS.index(said)] if said in LETTERS else int(said)
