"""What a trainer knows of math: its questions, its environment, and how questions are worked out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rocknroll.envs.reasoning.config import SPLITS
from rocknroll.envs.reasoning.math_config import MathColumns, MathConfig
from rocknroll.envs.reasoning.math_stories import Story, retold, stories, words
from rocknroll.envs.reasoning.sources import content_hash, read_splits, text
from rocknroll.envs.text import ExpertEpisode, ExpertStep, Progress, Task

INSTRUCTIONS = (
    "Solve the problem. Think step by step, then give the answer, one number or expression, in \\boxed{}, for example "
    "\\boxed{42}."
)
VERSION = 1
"""Of what is generated from a configuration."""
_FINAL = re.compile(r"####\s*(.+?)\s*$")


@dataclass(frozen=True)
class Problem:
    """A question, its answer, and how it is worked out."""

    id: str
    kind: str
    question: str
    answer: str
    worked: str
    """A whole response of an expert."""


class MathFamily:
    """A configured set of questions."""

    name = "math"
    entry_point = "rocknroll.envs.reasoning.math_env:MathEnv"
    instructions = INSTRUCTIONS
    noop = "I do not know"

    def __init__(self, config: MathConfig | Mapping[str, Any] | None = None) -> None:
        """
        Raises:
            pydantic.ValidationError: the configuration is impossible or has an unknown key.
        """
        self.config = config if isinstance(config, MathConfig) else MathConfig.model_validate(dict(config or {}))

    def prepare(self, progress: Progress | None = None) -> None:
        """Read the data, or see that there are as many problems as asked for.

        Raises:
            EnvDataError: it cannot be read, rows are wrong, or there are too few problems.
        """
        found = sum(len(problems) for problems in self._problems.values())
        if progress is not None:
            progress(found, found)

    def env_kwargs(self) -> dict[str, Any]:
        """Arguments of the environment class, as JSON."""
        return {"config": self.config.model_dump(mode="json")}

    def data_folders(self) -> list[Path]:
        """None: a question travels with its task."""
        return []

    def content_key(self) -> str:
        """Hash of everything that decides tasks and expert episodes."""
        rows = [vars(problem) for split in SPLITS for problem in self._problems[split]] if self.config.data else []
        return content_hash(VERSION, self.config.model_dump(mode="json"), rows)

    def vocabulary(self) -> list[str]:
        """Every word and number of generated problems; of data, nothing beyond what its experts say."""
        largest = max(self.config.largest_number, self.config.largest_value)
        return [] if self.config.data else [*words(), *map(str, range(largest + 1))]

    def tasks(self, split: str) -> list[Task]:
        """One task for each question of a split."""
        return [Task(problem.id, problem.kind, _options(problem)) for problem in self._problems[split]]

    def disguise_task(self, task: Task, seed: int) -> Task:
        """A generated problem in another story; others as they are."""
        if self.config.data:
            return task
        return replace(task, options=_options(_generated(retold(Story.of(task.id), seed))))

    def disguise_episode(self, episode: ExpertEpisode, seed: int) -> ExpertEpisode:
        """The same for what an expert wrote."""
        if self.config.data:
            return episode
        return _episode(episode.task_id, _generated(retold(Story.of(episode.task_id), seed)))

    def expert_episodes(
        self, split: str, count: int, seed: int, *, mistakes: float = 0.0, progress: Progress | None = None
    ) -> list[ExpertEpisode]:
        """How the first `count` questions of a split are worked out. `mistakes`: there are none; any answer ends it."""
        return [_episode(problem.id, problem) for problem in self._problems[split][:count]]

    @cached_property
    def _problems(self) -> dict[str, list[Problem]]:
        config = self.config
        if not config.data:
            return {split: [_generated(story) for story in stories(config, split)] for split in SPLITS}

        def reader(number: str, row: Mapping[str, Any]) -> Problem:
            return _of_row(number, row, config.columns)

        return read_splits(config.data, config.held_out, reader, skip_wrong_rows=config.skip_wrong_rows)


def _of_row(number: str, row: Mapping[str, Any], columns: MathColumns) -> Problem:
    said = text(row, columns.answer)
    final = _FINAL.search(said)
    answer = final[1] if final else said
    worked = f"{said[: final.start()].rstrip()}\n" if final else ""
    return Problem(
        id=text(row, columns.id) if columns.id else number,
        kind=text(row, columns.kind) if columns.kind else "math",
        question=text(row, columns.question),
        answer=answer,
        worked=f"{worked}\\boxed{{{answer}}}" if "\\boxed{" not in answer else answer,
    )


def _generated(story: Story) -> Problem:
    return Problem(story.id, story.kind, story.question, str(story.answer), story.derivation)


def _options(problem: Problem) -> dict[str, str]:
    return {"question": problem.question, "answer": problem.answer}


def _episode(task_id: str, problem: Problem) -> ExpertEpisode:
    return ExpertEpisode(task_id, problem.kind, (ExpertStep(problem.question, problem.worked),))
