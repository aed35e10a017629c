"""What a trainer knows of ALFWorld: its tasks, how to make the environment, and its expert.

Nothing here imports the engine; games and expert episodes are made in worker processes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rocknroll.envs.alfworld import package
from rocknroll.envs.alfworld.config import SPLITS, AlfWorldConfig, translations
from rocknroll.envs.alfworld.episodes import content_key, expert_episodes
from rocknroll.envs.alfworld.expert import NOTHING
from rocknroll.envs.alfworld.games import GeneratedLibrary, library
from rocknroll.envs.alfworld.renaming import Renaming
from rocknroll.envs.cache import cache_root
from rocknroll.envs.text import ExpertEpisode, Progress, Task

INSTRUCTIONS = (
    "You are in a house and have one household task. After each observation, answer with exactly one command and "
    "nothing else. Commands: look, inventory, go to RECEPTACLE, open RECEPTACLE, close RECEPTACLE, take OBJECT from "
    "RECEPTACLE, "
    "move OBJECT to RECEPTACLE, examine THING, use OBJECT, heat OBJECT with RECEPTACLE, cool OBJECT with RECEPTACLE, "
    "clean OBJECT with RECEPTACLE, slice OBJECT with OBJECT. Names come with their numbers, as in `go to cabinet 1`."
)

LARGEST_NUMBER = 32
"""Of a name, as in `cabinet 32`; full scenes have up to 27 cabinets."""


class AlfWorldFamily:
    """A configured set of ALFWorld games."""

    name = "alfworld"
    entry_point = "rocknroll.envs.alfworld.env:AlfWorldEnv"
    instructions = INSTRUCTIONS
    noop = "look"

    def __init__(self, config: AlfWorldConfig | Mapping[str, Any] | None = None) -> None:
        """
        Raises:
            pydantic.ValidationError: the configuration is impossible or has an unknown key.
            EnvDataError: official data is asked for and not there.
        """
        self.config = (
            config if isinstance(config, AlfWorldConfig) else AlfWorldConfig.model_validate(dict(config or {}))
        )
        self._library = library(self.config)

    @property
    def data_root(self) -> Path:
        """The folder that holds `json_2.1.1`, for the official loader."""
        return self._library.root

    def prepare(self, progress: Progress | None = None) -> None:
        """Make or check the games.

        Raises:
            EnvDataError: games are missing and cannot be made.
        """
        self._library.prepare(progress)

    def env_kwargs(self) -> dict[str, Any]:
        """Arguments of the environment class, as JSON. Paths are spelt out: a sandbox has a home of its own."""
        settings = self.config.model_dump(mode="json") | {"cache_dir": str(cache_root(self.config.cache_dir).resolve())}
        if not isinstance(self._library, GeneratedLibrary):
            settings |= {"data": "official", "data_path": str(self._library.root.resolve())}
        return {"config": settings}

    def tasks(self, split: str) -> list[Task]:
        """One task for each game of a split."""
        return [
            Task(
                id=f"{Path(ref.path).parent.parent.name}/{Path(ref.path).parent.name}",
                kind=ref.kind,
                options={"game": ref.path},
            )
            for ref in self._library.games(split)
        ]

    def disguise_task(self, task: Task, seed: int) -> Task:
        """`renamed` of the visits get other names for things."""
        return replace(task, options={**task.options, "renaming": seed}) if self._renames(seed) else task

    def disguise_episode(self, episode: ExpertEpisode, seed: int) -> ExpertEpisode:
        """The expert plays with true names; what is learnt from it may go by others."""
        if not self._renames(seed):
            return episode
        show = Renaming(seed).show
        steps = (
            replace(
                step,
                observation=show(step.observation),
                action=show(step.action),
                admissible=tuple(map(show, step.admissible)),
            )
            for step in episode.steps
        )
        return replace(episode, steps=tuple(steps))

    def _renames(self, seed: int) -> bool:
        return random.Random(seed).random() < self.config.renamed

    def data_folders(self) -> list[Path]:
        """Where games and their translations lie; translations may be written, too, and are not needed."""
        return [self._library.root, translations(self.config)]

    def content_key(self) -> str:
        """Hash of everything that decides tasks and expert episodes."""
        return content_key(
            self.config, [(task.id, task.options["game"]) for split in SPLITS for task in self.tasks(split)]
        )

    def vocabulary(self) -> list[str]:
        """Every name that a thing can have, its numbers, and the sentences of engine and grammar without blanks."""
        named = package.constants()
        names = {name.lower() for name in (*named.OBJECTS, *named.RECEPTACLES)}
        sentences = re.findall(r'"rhs": "(.*?)"', package.grammar())
        spoken = [re.sub(r"\\n|[\[{#].*?[\]}#]", " ", sentence) for sentence in sentences]
        return [*sorted(names), *map(str, range(1, LARGEST_NUMBER + 1)), *spoken, NOTHING]

    def expert_episodes(
        self, split: str, count: int, seed: int, *, mistakes: float = 0.0, progress: Progress | None = None
    ) -> list[ExpertEpisode]:
        """Solved episodes of the expert on the first `count` tasks of a split, cached on disk.

        `mistakes`: chance that a command for what is not there (`Expert.mistake`) comes before a command
        of the expert's; it is marked `imitate=False`.
        """
        return expert_episodes(self.config, self.tasks(split)[:count], seed, mistakes, progress)
