"""Instances by the thousand: shipped packages with mutations that their own tests notice, as rows of the usual schema.

Each instance is drawn from random numbers of its own, by seed and place, and kept if it holds what `trials.py` asks
for. Several mutations are put together from such as are noticed alone, so each of them has to be mended. Mutations
belong to splits: what is held out from training shares no mutation with it, alone or among others.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import cached_property
from itertools import count as count_from
from typing import Any, Literal

from rocknroll.envs.swebench.mini.mutations import Mutation, changed, edits_of
from rocknroll.envs.swebench.mini.mutators import mutations_of
from rocknroll.envs.swebench.mini.package import Bug, Package, load_package, package_names
from rocknroll.envs.swebench.mini.problems import statement
from rocknroll.envs.swebench.mini.rows import row_of
from rocknroll.envs.swebench.mini.trials import Outcome, Trials, Verdict
from rocknroll.envs.text import EnvDataError, Progress

Row = dict[str, Any]
Split = Literal["train", "seen", "unseen"]
Difficulty = Literal["easy", "medium", "hard"]
MOST_DRAWS = 60
"""Mutants that are tried for one instance before it is given up."""
MOST_GIVEN_UP = 25
"""Instances in a row that may be given up before there seem to be no more."""
AHEAD = 3
"""Instances in the making for each sandbox at work, so that none waits for one that takes longer."""


@dataclass(frozen=True)
class Plan:
    """How many mutations an instance has, and where."""

    difficulty: Difficulty
    mutations: int
    files: Literal["any", "one", "several"] = "any"

    def admits(self, members: Sequence[Mutation], one: Mutation) -> bool:
        """Whether a mutation can stand beside others: always in another function."""
        if any((member.path, member.function) == (one.path, one.function) for member in members):
            return False
        same = all(member.path == one.path for member in members)
        return not members or self.files == "any" or same == (self.files == "one")


PLANS = {
    Plan("easy", 1): 0.5,
    Plan("medium", 2, "one"): 0.3,
    Plan("hard", 2, "several"): 0.1,
    Plan("hard", 3): 0.1,
}
"""What is drawn, and how often."""


@dataclass(frozen=True)
class Generated:
    """Rows, and what became of all the mutants that were tried for them."""

    rows: list[Row]
    outcomes: Counter[Outcome]


def generate(
    count: int,
    seed: int,
    packages: Sequence[str] = (),
    progress: Progress | None = None,
    jobs: int = 2,
    split: Split | None = None,
    exclude: Collection[str] = (),
    on_row: Callable[[Row], None] | None = None,
) -> list[Row]:
    """Make instances; the same for the same arguments, as far as tests always answer the same.

    Args:
        packages: shipped packages to take; all unless given.
        jobs: sandboxes at work at a time. What is made does not depend on it.
        split: only of this split (`split_of`).
        exclude: instance ids that are not to come again.
        on_row: called with each row once it is made, so that what is made is not lost with what is not.

    Raises:
        EnvDataError: there is no such package, there are no more instances, or git is missing.
        SandboxError: sandboxes cannot be had here.
    """
    known = package_names()
    if missing := [name for name in packages if name not in known]:
        raise EnvDataError(f"mini-swe has no package {', '.join(missing)}; it has {', '.join(known)}")
    loaded = [load_package(name) for name in packages or known]
    return asyncio.run(generated(loaded, count, seed, progress, jobs, split, exclude, on_row)).rows


async def generated(
    packages: Sequence[Package],
    count: int,
    seed: int,
    progress: Progress | None = None,
    jobs: int = 2,
    split: Split | None = None,
    exclude: Collection[str] = (),
    on_row: Callable[[Row], None] | None = None,
) -> Generated:
    """`generate` for packages at hand, with an account of what was tried."""
    pools = [Pool(package) for package in packages]
    rows: list[Row] = []
    taken = set(exclude)
    async with Trials(packages, jobs) as trials:
        attempts = (Attempt(number, pools, trials, seed, split) for number in count_from())
        async with aclosing(_ahead(attempts, lambda: min(AHEAD * jobs, count - len(rows)))) as answers:
            while len(rows) < count:
                found = await _new(answers, taken)
                if found is None:
                    raise EnvDataError(
                        f"there are no more than {len(rows)} instances of this kind to be had; ask for fewer, or take "
                        "more packages or splits"
                    )
                taken.add(found.instance_id)
                # Not in a thread: Python 3.11 cannot parse in two of them at once (gh-106905).
                rows.append(row_of(found.package, found.bug()))
                if on_row is not None:
                    on_row(rows[-1])
                if progress is not None:
                    progress(len(rows), count)
    return Generated(rows, trials.outcomes)


async def _new(answers: AsyncIterator[tuple[Attempt, Find | None]], taken: Collection[str]) -> Find | None:
    """The next that is none of those taken; None if there seem to be no more."""
    for _ in range(MOST_GIVEN_UP):
        attempt, found = await anext(answers)
        while found is not None and found.instance_id in taken:
            found = await attempt.next()
        if found is not None:
            return found
    return None


async def _ahead(attempts: Iterator[Attempt], width: Callable[[], int]) -> AsyncGenerator[tuple[Attempt, Find | None]]:
    """Attempts in their order, with the first that each comes to; `width` of them are under way at a time."""
    waiting: deque[tuple[Attempt, asyncio.Task[Find | None]]] = deque()
    try:
        while True:
            while len(waiting) < width():
                attempt = next(attempts)
                waiting.append((attempt, asyncio.create_task(attempt.next())))
            attempt, task = waiting.popleft()
            yield attempt, await task
    finally:
        for _, task in waiting:
            task.cancel()
        await asyncio.gather(*(task for _, task in waiting), return_exceptions=True)


def split_of(instance_id: str) -> Split:
    """The split of a generated instance.

    Of ten mutations one belongs to `unseen`, one to `seen` and eight to `train`, and an instance is made of mutations
    of one split. So a mutation that occurs in one split occurs in no other.
    """
    return _split(instance_id.rpartition("-")[2])


def _split(hash8: str) -> Split:
    match int(hash8, 16) % 10:
        case 0:
            return "unseen"
        case 1:
            return "seen"
        case _:
            return "train"


def _hash8(package: str, files: Mapping[str, str], split: Split | None = None) -> str:
    """Of what a package's changed files are; within a split if one is given."""
    for number in count_from():
        content = json.dumps([package, number, sorted(files.items())])
        hash8 = hashlib.sha256(content.encode()).hexdigest()[:8]
        if split is None or _split(hash8) == split:
            return hash8
    raise AssertionError("unreachable")


class Pool:
    """All single mutations of a package, by split and kind; of several that make the same text, the first."""

    def __init__(self, package: Package) -> None:
        self.package = package
        self.mutations: dict[Split, dict[str, list[Mutation]]] = {"train": {}, "seen": {}, "unseen": {}}
        known: set[str] = set()
        for path in sorted(package.tree):
            if path.endswith(".py") and not path.startswith("tests/"):
                for one in mutations_of(path, package.tree[path]):
                    hash8 = _hash8(package.name, changed(package.tree, [one]))
                    if hash8 not in known:
                        known.add(hash8)
                        self.mutations[_split(hash8)].setdefault(one.kind, []).append(one)

    def draw(self, rng: random.Random, plan: Plan, members: Sequence[Mutation], split: Split) -> Mutation | None:
        """A mutation that can stand beside others, every kind as likely as any; None if there is none."""
        found = {
            kind: fitting
            for kind, mutations in self.mutations[split].items()
            if (fitting := [one for one in mutations if plan.admits(members, one)])
        }
        return rng.choice(found[rng.choice(list(found))]) if found else None


@dataclass(frozen=True)
class Find:
    """Mutations that make an instance."""

    package: Package
    plan: Plan
    members: tuple[Mutation, ...]
    verdict: Verdict
    split: Split

    @cached_property
    def files(self) -> Mapping[str, str]:
        """Those that are changed, as they are in the base commit."""
        return changed(self.package.tree, self.members)

    @cached_property
    def hash8(self) -> str:
        return _hash8(self.package.name, self.files, self.split)

    @property
    def instance_id(self) -> str:
        return f"rocknroll__{self.package.name}-mut-{self.hash8}"

    def bug(self) -> Bug:
        """As the rows of hand-written bugs are made from."""
        failing, said = self.verdict.failing, self.verdict.failures
        rng = random.Random(self.hash8)  # so that one id always has one text
        return Bug(
            id=f"mut-{self.hash8}",
            difficulty=self.plan.difficulty,
            kind=", ".join(one.kind for one in self.members),
            problem=statement(self.package.name, self.package.tree, failing, said, rng),
            edits=edits_of(self.package.tree, self.files),
            hides=failing,
        )


class Attempt:
    """An instance in the making: its package, its plan and its own random numbers."""

    def __init__(self, number: int, pools: Sequence[Pool], trials: Trials, seed: int, split: Split | None) -> None:
        self._rng = random.Random(f"{seed} {number}")
        self._pool, self._trials = self._rng.choice(pools), trials
        self._plan = self._rng.choices(list(PLANS), list(PLANS.values()))[0]
        self._split = split
        self._draws = 0

    async def next(self) -> Find | None:
        """The next that holds; None when it has been tried often enough."""
        package = self._pool.package
        while self._draws < MOST_DRAWS:
            split: Split = self._split or self._rng.choices(("train", "seen", "unseen"), (8, 1, 1))[0]
            members = await self._members(split)
            if len(members) == self._plan.mutations:
                verdict = await self._trials.verdict(package, changed(package.tree, members))
                # Whoever mends all but one must still be found out by the tests.
                if verdict.outcome == "kept" and all(set(verdict.failing) & shown for shown in members.values()):
                    return Find(package, self._plan, tuple(members), verdict, split)
        return None

    async def _members(self, split: Split) -> dict[Mutation, set[str]]:
        """Mutations that are noticed alone, each with the tests that show it; too few of them if no more are found."""
        tree = self._pool.package.tree
        members: dict[Mutation, set[str]] = {}
        while len(members) < self._plan.mutations and self._draws < MOST_DRAWS:
            self._draws += 1
            one = self._pool.draw(self._rng, self._plan, list(members), split)
            if one is None:
                break
            verdict = await self._trials.noticed(self._pool.package, changed(tree, [one]))
            if verdict.outcome == "kept":
                members[one] = set(verdict.failing)
        return members
