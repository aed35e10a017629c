"""Plays episodes without a model: gold, idle, random or written actions, for smoke tests, load tests and benchmarks."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, cycle, islice, repeat, zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from rocknroll.envs.text import Concludes, EnvDataError, Family, Places, Task
from rocknroll.trainer.domains import Domain, Domains
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.rollout.episode import measured
from rocknroll.trainer.rollout.faults import HOPELESS, INFRASTRUCTURE, cause_of, describe
from rocknroll.trainer.rollout.opening import open_environments
from rocknroll.trainer.trajectory import Outcome
from rocknroll.trainer.ui import RunUI

POLICIES = ("gold", "noop", "random")
SCRIPT = "script:"
RANDOM_WORDS = 4
"""In a random action, where the environment names no admissible ones."""


class Policy(Protocol):
    """Says what to do in an episode."""

    def actions(self, task: Task, info: Mapping[str, Any]) -> Iterator[str]:
        """One action after another, whose end is the episode's. `info` is always the newest."""


@dataclass(frozen=True)
class Played:
    """One episode."""

    task_id: str
    kind: str
    domain: str
    outcome: Outcome
    success: bool = False
    reward: float = 0.0
    turns: int = 0
    attempts: int = 1
    cause: str = ""
    error: str = ""
    seconds: float = 0.0
    measured: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """All episodes of a rollout."""

    episodes: Sequence[Played]
    wall_s: float
    retried: Mapping[str, int]
    """Attempts that infrastructure ended, by cause."""

    def as_json(self) -> dict[str, Any]:
        """For `--json`; seconds are means over episodes."""
        judged = [each for each in self.episodes if each.outcome is not Outcome.INFRA_ERROR]
        names = sorted({name for each in judged for name in each.measured})
        return {
            "episodes": len(self.episodes),
            "outcomes": dict(Counter(each.outcome.value for each in self.episodes)),
            "success_rate": round(fmean(each.success for each in judged), 4) if judged else None,
            "mean_reward": round(fmean(each.reward for each in judged), 4) if judged else None,
            "mean_turns": round(fmean(each.turns for each in judged), 2) if judged else None,
            "wall_s": round(self.wall_s, 2),
            "episodes_per_minute": round(60 * len(self.episodes) / self.wall_s, 1) if self.wall_s else None,
            "seconds_per_episode": round(fmean(each.seconds for each in judged), 3) if judged else None,
            "measured": {
                name: round(fmean(each.measured[name] for each in judged if name in each.measured), 4) for name in names
            },
            "retried": dict(self.retried),
            "lost": {each.task_id: each.error for each in self.episodes if each.outcome is Outcome.INFRA_ERROR},
            "tasks": [
                {"task": each.task_id, "domain": each.domain, "success": each.success, "reward": each.reward}
                for each in judged
            ],
        }


async def rollout(
    recipe: Recipe, policy: str, *, split: str, episodes: int, concurrency: int, attempts: int, ui: RunUI
) -> Report:
    """Play the first tasks of a split, of all domains in turns, over and over until there are enough episodes.

    Args:
        policy: `gold`, `noop`, `random` or `script:FILE`.
        attempts: at an episode that infrastructure ends.

    Raises:
        EnvDataError: data is missing, a script is unfit, or there is no expert.
        SandboxError: no sandbox can ever be had.
    """
    domains = Domains(recipe)
    for domain in domains:
        domain.family.prepare(lambda done, total: ui.progress("data", done, total))
    policies = {domain.name: make_policy(policy, domain, split, episodes, recipe.seed) for domain in domains}
    in_turns = zip_longest(*(domain.tasks(split) for domain in domains))
    tasks = [task for turn in in_turns for task in turn if task is not None]
    if not tasks:
        raise EnvDataError(f"the split {split!r} has no task")
    retried: Counter[str] = Counter()
    played: list[Played] = []
    slots = asyncio.Semaphore(concurrency)
    async with open_environments(recipe, domains) as (_, places):

        async def play(number: int, task: Task) -> None:
            async with slots:
                for attempt in range(1, attempts + 1):
                    name = f"scripted-{number}-{attempt}"
                    found = await play_one(places, policies[task.domain], task, name, attempt)
                    if found.outcome is not Outcome.INFRA_ERROR:
                        break
                    retried[found.cause] += 1
            played.append(found)
            ui.progress("episodes", len(played), episodes)

        began_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number, task in enumerate(islice(cycle(tasks), episodes)):
                group.create_task(play(number, task))
        wall_s = time.perf_counter() - began_s
    return Report(played, wall_s, retried)


async def play_one(places: Places, policy: Policy, task: Task, name: str, attempt: int) -> Played:
    """One attempt at an episode. What infrastructure ends has no reward."""
    began_s = time.perf_counter()
    reward, turns, outcome = 0.0, 0, Outcome.TRUNCATED
    try:
        async with places.lease(name, task) as env:
            _, info = await env.reset(options=task.options)
            told = dict(info)
            for action in policy.actions(task, told):
                _, gained, terminated, truncated, info = await env.step(action)
                reward, turns = reward + gained, turns + 1
                told.clear()
                told.update(info)
                if terminated or truncated:
                    outcome = Outcome.COMPLETED if terminated else Outcome.TRUNCATED
                    break
            else:
                if isinstance(env, Concludes):
                    gained, info = await env.conclude()
                    reward += gained
    except HOPELESS:
        raise
    except INFRASTRUCTURE as failure:
        lost_s = time.perf_counter() - began_s
        return Played(
            task.id,
            task.kind,
            task.domain,
            Outcome.INFRA_ERROR,
            attempts=attempt,
            cause=cause_of(failure),
            error=describe(failure),
            seconds=lost_s,
        )
    return Played(
        task.id,
        task.kind,
        task.domain,
        outcome,
        bool(info.get("won", reward > 0)),
        reward,
        turns,
        attempt,
        seconds=time.perf_counter() - began_s,
        measured=measured(info),
    )


def make_policy(name: str, domain: Domain, split: str, episodes: int, seed: int) -> Policy:
    """The policy of that name for a domain.

    Raises:
        EnvDataError: it cannot be had; the text says why.
    """
    if name == "gold":
        return Gold(domain.family, split, episodes, seed)
    if name == "noop":
        return Noop(domain.family)
    if name == "random":
        return Random(domain.family, seed)
    return Script(Path(name.removeprefix(SCRIPT)))


class Gold:
    """What the family's expert does."""

    def __init__(self, family: Family, split: str, episodes: int, seed: int) -> None:
        known = family.expert_episodes(split, episodes, seed)
        self._actions = {episode.task_id: [step.action for step in episode.steps] for episode in known}
        self._family = family.name

    def actions(self, task: Task, info: Mapping[str, Any]) -> Iterator[str]:
        if task.id not in self._actions:
            raise EnvDataError(f"the expert of {self._family} has no solution of {task.id}")
        return iter(self._actions[task.id])


class Noop:
    """Hands in nothing."""

    def __init__(self, family: Family) -> None:
        self._action = family.noop

    def actions(self, task: Task, info: Mapping[str, Any]) -> Iterator[str]:
        return repeat(self._action)


class Random:
    """An admissible action, else words of the family's vocabulary."""

    def __init__(self, family: Family, seed: int) -> None:
        self._words = list(family.vocabulary())
        self._rng = random.Random(seed)

    def actions(self, task: Task, info: Mapping[str, Any]) -> Iterator[str]:
        while True:
            admissible = info.get("admissible_commands")
            words = self._rng.choices(self._words, k=RANDOM_WORDS) if self._words else []
            yield self._rng.choice(admissible) if admissible else " ".join(words)


class Script:
    """Actions from a file: a JSON list for every task, or a JSON object with a list for each; else one on each line."""

    def __init__(self, path: Path) -> None:
        """
        Raises:
            EnvDataError: the file is not there, or is not of this form.
        """
        try:
            text = path.read_text(encoding="utf-8")
            found = json.loads(text) if path.suffix == ".json" else [line for line in text.splitlines() if line.strip()]
        except (OSError, ValueError) as error:
            raise EnvDataError(f"the script {path} cannot be read: {error}") from None
        lists = found.values() if isinstance(found, dict) else [found]
        if not all(isinstance(actions, list) for actions in lists) or not all(
            isinstance(action, str) for action in chain(*lists)
        ):
            raise EnvDataError(f"the script {path} is neither a list of actions nor an object with one for each task")
        self._path, self._found = path, found

    def actions(self, task: Task, info: Mapping[str, Any]) -> Iterator[str]:
        if isinstance(self._found, list):
            return iter(self._found)
        if task.id not in self._found:
            raise EnvDataError(f"the script {self._path} has no actions for {task.id}")
        return iter(self._found[task.id])
