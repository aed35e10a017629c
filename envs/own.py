"""A Gymnasium environment of the user's own as a family: `env.name: my_module:MyEnv` in a recipe.

Observations and actions are text. The class may have `tasks(split)`, a static method that returns the
options of each task's `reset`; without it tasks are seeds. `instructions` and `noop` are class
attributes that may be there. The class runs inside sandboxes; here it is only imported.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
from pydantic import BaseModel, ConfigDict, NonNegativeInt

from rocknroll.envs.host import load
from rocknroll.envs.text import EnvDataError, ExpertEpisode, Progress, Task

SEED = "rocknroll_seed"
"""Option of `reset` that is the seed of a task without options of its own."""


class OwnConfig(BaseModel):
    """Settings of any environment of the user's own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kwargs: dict[str, Any] = {}
    """Keyword arguments of the class (JSON)."""
    train_tasks: NonNegativeInt = 1000
    seen_tasks: NonNegativeInt = 0
    unseen_tasks: NonNegativeInt = 100
    """Seeds in each split, for a class that lists no tasks; no two splits have one in common."""
    readable: tuple[Path, ...] = ()
    """Folders that it has to read, beside the one that it is imported from."""


class OwnEnv(gymnasium.Wrapper[str, str, str, str]):
    """The environment at `entry_point`, whose tasks may be seeds. Runs inside a sandbox."""

    def __init__(self, entry_point: str, kwargs: Mapping[str, Any]) -> None:
        env = load(entry_point)(**kwargs)
        for name in ("observation_space", "action_space"):
            if not isinstance(getattr(env, name, None), gymnasium.spaces.Text):
                raise TypeError(
                    f"{entry_point}: `{name}` has to be gymnasium.spaces.Text; wrap it, text in and text out"
                )
        super().__init__(env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin a task."""
        own = dict(options or {})
        seed = own.pop(SEED, seed)
        return self.env.reset(seed=seed, options=own or None)


class OwnFamily:
    """The tasks of one such class."""

    entry_point = f"{OwnEnv.__module__}:{OwnEnv.__name__}"

    def __init__(self, target: str, config: OwnConfig | Mapping[str, Any] | None = None) -> None:
        """`target`: `package.module:Class`, importable here.

        Raises:
            pydantic.ValidationError: the configuration has an unknown key.
        """
        self.name = target
        self.config = config if isinstance(config, OwnConfig) else OwnConfig.model_validate(dict(config or {}))
        self._class = load(target)
        self.instructions = str(getattr(self._class, "instructions", ""))
        self.noop = str(getattr(self._class, "noop", ""))

    def prepare(self, progress: Progress | None = None) -> None:
        """Nothing has to be made."""

    def modules(self) -> list[str]:
        """See `Preloads`."""
        return [self.name.partition(":")[0]]

    def env_kwargs(self) -> dict[str, Any]:
        """Arguments of `OwnEnv`."""
        return {"entry_point": self.name, "kwargs": self.config.kwargs}

    def data_folders(self) -> list[Path]:
        """As configured."""
        return [folder.absolute() for folder in self.config.readable]

    def content_key(self) -> str:
        """Hash of configuration and tasks."""
        tasks = [[task.id, task.options] for split in ("train", "seen", "unseen") for task in self.tasks(split)]
        made_of = [self.name, self.config.model_dump(mode="json"), tasks]
        return hashlib.sha256(json.dumps(made_of, sort_keys=True, default=repr).encode()).hexdigest()[:16]

    def vocabulary(self) -> list[str]:
        """Words of the instructions."""
        return self.instructions.split()

    def tasks(self, split: str) -> list[Task]:
        """What the class lists, or seeds.

        Raises:
            EnvDataError: what the class lists are not mappings.
        """
        listed = getattr(self._class, "tasks", None)
        found = self._seeds(split) if listed is None else list(listed(split))
        if not all(isinstance(options, Mapping) for options in found):
            raise EnvDataError(f"{self.name}.tasks({split!r}) has to return the options of each task, as dictionaries")
        title = self.name.partition(":")[2]
        return [Task(f"{split}-{number}", title, dict(options)) for number, options in enumerate(found)]

    def _seeds(self, split: str) -> list[Mapping[str, Any]]:
        config = self.config
        counts = {"train": config.train_tasks, "seen": config.seen_tasks, "unseen": config.unseen_tasks}
        first = sum(count for name, count in counts.items() if list(counts).index(name) < list(counts).index(split))
        return [{SEED: seed} for seed in range(first, first + counts[split])]

    def disguise_task(self, task: Task, seed: int) -> Task:
        """As it is."""
        return task

    def disguise_episode(self, episode: ExpertEpisode, seed: int) -> ExpertEpisode:
        """As it is."""
        return episode

    def expert_episodes(
        self, split: str, count: int, seed: int, *, mistakes: float = 0.0, progress: Progress | None = None
    ) -> Sequence[ExpertEpisode]:
        """There is no expert."""
        return []
