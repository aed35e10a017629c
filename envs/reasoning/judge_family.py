"""What a trainer knows of tasks that a judge grades, and the environment, which runs in the trainer's process.

No sandbox is needed, for nothing is run: an answer is text, and is sent to the judge as text.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import gymnasium

from rocknroll.envs.outside import OutsideEnv
from rocknroll.envs.reasoning.config import SPLITS
from rocknroll.envs.reasoning.judge_client import JudgeClient
from rocknroll.envs.reasoning.judge_config import JudgeColumns, JudgeConfig
from rocknroll.envs.reasoning.judge_tasks import writing_tasks
from rocknroll.envs.reasoning.judge_verdict import Inquiry
from rocknroll.envs.reasoning.sources import content_hash, read_splits, text
from rocknroll.envs.text import ExpertEpisode, ExpertStep, Progress, Task, TextEnvironment

INSTRUCTIONS = "Do what the task asks, as well as you can, and write nothing but your answer."
VERSION = 1
"""Of what is generated from a configuration."""


@dataclass(frozen=True)
class JudgedTask:
    """A task, and what its judge is told of it."""

    id: str
    kind: str
    question: str
    reference: str = ""
    rubric: str = ""
    """Empty: that of the configuration."""


class JudgeFamily:
    """A configured set of tasks."""

    name = "judge"
    entry_point = "rocknroll.envs.reasoning.judge_family:JudgeEnv"
    instructions = INSTRUCTIONS
    noop = ""

    def __init__(self, config: JudgeConfig | Mapping[str, Any] | None = None) -> None:
        """
        Raises:
            pydantic.ValidationError: the configuration is impossible or has an unknown key.
        """
        self.config = config if isinstance(config, JudgeConfig) else JudgeConfig.model_validate(dict(config or {}))

    def prepare(self, progress: Progress | None = None) -> None:
        """Read the data, or see that there are as many tasks as asked for.

        Raises:
            EnvDataError: it cannot be read, rows are wrong, or there are too few tasks.
        """
        found = sum(len(tasks) for tasks in self._tasks.values())
        if progress is not None:
            progress(found, found)

    def env_kwargs(self) -> dict[str, Any]:
        """Arguments of the environment class, as JSON."""
        return {"config": self.config.model_dump(mode="json")}

    def data_folders(self) -> list[Path]:
        """None."""
        return []

    def content_key(self) -> str:
        """Hash of everything that decides tasks and expert episodes."""
        rows = [vars(task) for split in SPLITS for task in self._tasks[split]]
        return content_hash(VERSION, self.config.model_dump(mode="json"), rows)

    def vocabulary(self) -> list[str]:
        """The words of generated tasks; of data, nothing beyond what its experts say."""
        if self.config.data:
            return []
        return sorted({word for tasks in self._tasks.values() for task in tasks for word in task.question.split()})

    def tasks(self, split: str) -> list[Task]:
        """One task for each of a split."""
        return [Task(task.id, task.kind) for task in self._tasks[split]]

    def disguise_task(self, task: Task, seed: int) -> Task:
        """As it is."""
        return task

    def disguise_episode(self, episode: ExpertEpisode, seed: int) -> ExpertEpisode:
        """As it is."""
        return episode

    def expert_episodes(
        self, split: str, count: int, seed: int, *, mistakes: float = 0.0, progress: Progress | None = None
    ) -> list[ExpertEpisode]:
        """Reference answers of the first `count` tasks of a split; generated tasks have none."""
        return [
            ExpertEpisode(task.id, task.kind, (ExpertStep(task.question, task.reference),))
            for task in self._tasks[split][:count]
            if task.reference
        ]

    @asynccontextmanager
    async def places(self, count: int) -> AsyncIterator[JudgePlaces]:
        """Open the connection to the judge.

        Raises:
            EnvDataError: the data cannot be read, or the key is not there. JudgeFailed: the judge's model is unknown.
        """
        self.prepare()
        async with JudgeClient(self.config) as client:
            by_id = {task.id: task for tasks in self._tasks.values() for task in tasks}
            yield JudgePlaces(client, by_id, self.config)

    @cached_property
    def _tasks(self) -> dict[str, list[JudgedTask]]:
        config = self.config
        if not config.data:
            return {
                split: [JudgedTask(task.id, "judge", task.question) for task in writing_tasks(config, split)]
                for split in SPLITS
            }

        def reader(number: str, row: Mapping[str, Any]) -> JudgedTask:
            return _of_row(number, row, config.columns)

        return read_splits(config.data, config.held_out, reader, skip_wrong_rows=config.skip_wrong_rows)


class JudgePlaces:
    """Where answers are judged."""

    def __init__(self, client: JudgeClient, tasks: Mapping[str, JudgedTask], config: JudgeConfig) -> None:
        self._client, self._tasks, self._config = client, tasks, config

    @asynccontextmanager
    async def lease(self, owner: str, task: Task) -> AsyncIterator[TextEnvironment]:
        """See `Places`; there is nothing that could run out."""
        yield _Episode(self._client, self._tasks[task.id], self._config)


class _Episode:
    """One task, one answer."""

    def __init__(self, client: JudgeClient, task: JudgedTask, config: JudgeConfig) -> None:
        self._client, self._task, self._config = client, task, config
        self._open = False

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Show the task."""
        self._open = True
        return self._task.question, {"won": False}

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Have the answer judged.

        Raises:
            JudgeFailed: there is no verdict.
        """
        if not self._open:
            raise gymnasium.error.ResetNeeded("call reset() before step(): a task takes one answer")
        self._open = False
        config, task = self._config, self._task
        low, high = config.scale
        if not action.strip() or len(action) > config.longest_answer:
            said = f"longer than {config.longest_answer} characters" if action.strip() else "empty"
            info = {"won": False, "invalid_action": True, "metrics": {"judge_score": low}}
            return f"the answer is {said}", 0.0, True, False, info
        inquiry = Inquiry(task.question, action, task.rubric or config.rubric, config.scale, task.reference)
        verdict = await self._client.verdict(inquiry)
        info = {
            "won": verdict.score >= config.passing,
            "invalid_action": False,
            "metrics": {"judge_score": verdict.score},
        }
        return verdict.reason, (verdict.score - low) / (high - low), True, False, info


class JudgeEnv(OutsideEnv):
    """One task, one answer, for `gymnasium.make("rocknroll/Judge-v0")`. Close it: it keeps a connection."""

    def __init__(
        self, config: Mapping[str, Any] | None = None, split: str = "train", render_mode: str | None = None
    ) -> None:
        """`config`: fields of `JudgeConfig`. `split`: where tasks come from when `reset` names none."""
        super().__init__(JudgeFamily(config), split, render_mode)


def _of_row(number: str, row: Mapping[str, Any], columns: JudgeColumns) -> JudgedTask:
    return JudgedTask(
        id=text(row, columns.id) if columns.id else number,
        kind=text(row, columns.kind) if columns.kind else "judge",
        question=text(row, columns.question),
        reference=text(row, columns.reference) if row.get(columns.reference) is not None else "",
        rubric=text(row, columns.rubric) if row.get(columns.rubric) is not None else "",
    )
