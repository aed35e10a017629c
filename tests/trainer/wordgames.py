"""A family of environments as small as one can be: say the word that you see. It has an expert, words and disguises.

Nothing plays it; it is for what comes before playing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from rocknroll.envs.text import ExpertEpisode, ExpertStep, Progress, Task

WORDGAMES = "wordgames:WordGames"
TASK_COUNT = 5


class WordGamesConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    word: str = "apple"
    tasks: int = TASK_COUNT
    disguised: bool = False


class WordGames:
    """`tasks` training tasks, and two in each other split."""

    name = "wordgames"
    entry_point = "wordgames:NobodyPlaysIt"
    noop = ""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = WordGamesConfig.model_validate(config)

    @property
    def instructions(self) -> str:
        return f"Say {self.config.word}."

    def prepare(self, progress: Progress | None = None) -> None:
        pass

    def env_kwargs(self) -> Mapping[str, Any]:
        return {}

    def data_folders(self) -> Sequence[Path]:
        return ()

    def content_key(self) -> str:
        return f"key of {self.config.word}"

    def vocabulary(self) -> Sequence[str]:
        return (f"{self.config.word}s",)

    def tasks(self, split: str) -> Sequence[Task]:
        count = self.config.tasks if split == "train" else 2
        return [Task(f"{split}/{self.config.word}{i}", "say") for i in range(count)]

    def expert_episodes(
        self, split: str, count: int, seed: int, *, mistakes: float = 0.0, progress: Progress | None = None
    ) -> Sequence[ExpertEpisode]:
        step = ExpertStep(f"here is an {self.config.word}", f"say {self.config.word}")
        return [ExpertEpisode(task.id, task.kind, (step,)) for task in self.tasks(split)[:count]]

    def disguise_task(self, task: Task, seed: int) -> Task:
        return replace(task, options={"disguise": seed}) if self.config.disguised else task

    def disguise_episode(self, episode: ExpertEpisode, seed: int) -> ExpertEpisode:
        return episode


def wordgame(**config: Any) -> dict[str, Any]:
    """An `env` section."""
    return {"name": WORDGAMES, "config": config}
