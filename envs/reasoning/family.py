"""What a trainer knows of Countdown: its puzzles, its environment, and its expert."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rocknroll.envs.reasoning.config import CountdownConfig
from rocknroll.envs.reasoning.countdown import question
from rocknroll.envs.reasoning.puzzles import Puzzle, derivation, puzzles
from rocknroll.envs.text import ExpertEpisode, ExpertStep, Progress, Task

INSTRUCTIONS = (
    "You are given some numbers and a target. Combine all numbers, each exactly once, by + - * / and parentheses into "
    "an expression whose value is the target. Think step by step, then give the expression between <answer> and "
    "</answer>, for example <answer>(3 + 5) * 7</answer>."
)
VERSION = 2
"""Of what is generated from a configuration."""


class CountdownFamily:
    """A configured set of puzzles; nothing lies on disk."""

    name = "countdown"
    entry_point = "rocknroll.envs.reasoning.countdown:CountdownEnv"
    instructions = INSTRUCTIONS
    noop = "answer"

    def __init__(self, config: CountdownConfig | Mapping[str, Any] | None = None) -> None:
        """
        Raises:
            pydantic.ValidationError: the configuration is impossible or has an unknown key.
        """
        self.config = (
            config if isinstance(config, CountdownConfig) else CountdownConfig.model_validate(dict(config or {}))
        )

    def prepare(self, progress: Progress | None = None) -> None:
        """See that there are as many puzzles as asked for.

        Raises:
            EnvDataError: there are not.
        """
        for done, split in enumerate(("train", "seen", "unseen"), start=1):
            puzzles(self.config, split)
            if progress is not None:
                progress(done, 3)

    def env_kwargs(self) -> dict[str, Any]:
        """Arguments of the environment class, as JSON."""
        return {"config": self.config.model_dump(mode="json")}

    def data_folders(self) -> list[Path]:
        """None."""
        return []

    def content_key(self) -> str:
        """Hash of everything that decides tasks and expert episodes."""
        made_of = {"version": VERSION, "config": self.config.model_dump(mode="json")}
        return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]

    def vocabulary(self) -> list[str]:
        """Every number, and every word and sign that is written."""
        words = ["numbers", "target", "want", "no", "answer", "+", "-", "*", "/", "=", "(", ")", ";"]
        return [*words, *map(str, range(self.config.largest_value + 1))]

    def tasks(self, split: str) -> list[Task]:
        """One task for each puzzle of a split."""
        return [_task(puzzle) for puzzle in puzzles(self.config, split)]

    def disguise_task(self, task: Task, seed: int) -> Task:
        """The same numbers in another order."""
        return replace(task, options={**task.options, "numbers": _shuffled(task.options["numbers"], seed)})

    def disguise_episode(self, episode: ExpertEpisode, seed: int) -> ExpertEpisode:
        """Another derivation of the same puzzle, asked in another order."""
        puzzle = _puzzle(episode.task_id)
        said = derivation(puzzle, self.config, random.Random(f"{puzzle.id} {seed}"))
        assert said is not None, f"{puzzle.id} was solved before"
        asked = question(_shuffled(puzzle.numbers, seed), puzzle.target)
        return ExpertEpisode(episode.task_id, episode.kind, (ExpertStep(asked, said),))

    def expert_episodes(
        self, split: str, count: int, seed: int, *, mistakes: float = 0.0, progress: Progress | None = None
    ) -> list[ExpertEpisode]:
        """Derivations of the first `count` puzzles of a split. `mistakes`: there are none; any answer ends it."""
        episodes = []
        chosen = puzzles(self.config, split)[:count]
        for done, puzzle in enumerate(chosen, start=1):
            said = derivation(puzzle, self.config, random.Random(f"{puzzle.id} {seed}"))
            if said is not None:
                step = ExpertStep(question(puzzle.numbers, puzzle.target), said)
                episodes.append(ExpertEpisode(puzzle.id, _kind(puzzle), (step,)))
            if progress is not None and done % 1000 == 0:
                progress(done, len(chosen))
        return episodes


def _task(puzzle: Puzzle) -> Task:
    return Task(puzzle.id, _kind(puzzle), {"numbers": list(puzzle.numbers), "target": puzzle.target})


def _kind(puzzle: Puzzle) -> str:
    return f"{len(puzzle.numbers)} numbers"


def _puzzle(task_id: str) -> Puzzle:
    numbers, _, target = task_id.partition("=")
    return Puzzle(tuple(map(int, numbers.split("-"))), int(target))


def _shuffled(numbers: Any, seed: int) -> list[int]:
    shuffled = list(numbers)
    random.Random(seed).shuffle(shuffled)
    return shuffled
