"""What a trainer knows of SWE-bench: instances as tasks, and the gold patch as the expert."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from rocknroll.envs.outside import OutsideEnv
from rocknroll.envs.swebench.campaign import SANDBOXES_EACH
from rocknroll.envs.swebench.config import SWEBenchConfig
from rocknroll.envs.swebench.dataset import load_instances
from rocknroll.envs.swebench.episode import EpisodePlaces, problem_of
from rocknroll.envs.swebench.instance import Instance
from rocknroll.envs.swebench.protocol import INSTRUCTIONS, SUBMISSION, as_action, observation
from rocknroll.envs.swebench.workplaces import Workplaces
from rocknroll.envs.text import EnvDataError, ExpertEpisode, ExpertStep, Places, Progress, Task

_WORD = re.compile(r"\w+|[^\w\s]")


class SWEBenchFamily:
    """Instances of a data set. The environment runs outside of its sandboxes (`text.OutsideFamily`)."""

    name = "swebench"
    entry_point = "rocknroll.envs.swebench.family:SWEBenchEnv"
    instructions = INSTRUCTIONS
    noop = SUBMISSION

    def __init__(self, config: SWEBenchConfig | Mapping[str, Any] | None = None) -> None:
        """
        Raises:
            pydantic.ValidationError: the configuration has an impossible value or an unknown key.
        """
        self.config = config if isinstance(config, SWEBenchConfig) else SWEBenchConfig.model_validate(config or {})

    def prepare(self, progress: Progress | None = None) -> None:
        """Read the data set.

        Raises:
            EnvDataError: there is none, or rows of it are no instances; the text has the first of them.
        """
        done = len(self.instances)
        if progress is not None:
            progress(done, done)

    @cached_property
    def instances(self) -> Mapping[str, Instance]:
        """By id, those of `exclude` left out.

        Raises:
            EnvDataError: see `prepare`.
        """
        found, wrong = load_instances(self.config.data, self.config.data_split)
        if wrong:
            first = "; ".join(f"{name}: {problem}" for name, problem in list(wrong.items())[:3])
            raise EnvDataError(
                f"{len(wrong)} of {len(wrong) + len(found)} rows of {self.config.data} are no instances: {first}. "
                f"`roll validate {self.config.data}` names all; leave them out of the data set"
            )
        if unknown := set(self.config.exclude) - {instance.id for instance in found}:
            raise EnvDataError(f"{self.config.data} has no instance {', '.join(sorted(unknown))} to exclude")
        return {instance.id: instance for instance in found if instance.id not in self.config.exclude}

    def env_kwargs(self) -> dict[str, Any]:
        """Arguments of the environment class, as JSON."""
        return {"config": self.config.model_dump(mode="json")}

    def data_folders(self) -> list[Path]:
        """None: sandboxes see nothing of the data."""
        return []

    def content_key(self) -> str:
        """Hash of everything that decides tasks and expert episodes."""
        rows = [dict(instance.row) for instance in self.instances.values()]
        made_of = json.dumps([rows, self.config.held_out, self.config.hints], sort_keys=True, default=str)
        return hashlib.sha256(made_of.encode()).hexdigest()[:16]

    def vocabulary(self) -> list[str]:
        """Words of all problems and gold patches."""
        texts = [f"{each.problem} {each.hints} {each.gold_patch}" for each in self.instances.values()]
        return sorted({word for text in texts for word in _WORD.findall(text)})

    def tasks(self, split: str) -> list[Task]:
        """`train`, `unseen` (held out), or `seen`, which is `train` again, in the data set's order."""
        wanted = split == "unseen"
        return [
            Task(instance.id, str(instance.row.get("difficulty") or instance.repo), {})
            for instance in self.instances.values()
            if held_out(instance.id, self.config.held_out) == wanted
        ]

    def disguise_task(self, task: Task, seed: int) -> Task:
        """The task itself: a repository has one surface."""
        return task

    def disguise_episode(self, episode: ExpertEpisode, seed: int) -> ExpertEpisode:
        """The episode itself."""
        return episode

    def expert_episodes(
        self, split: str, count: int, seed: int, *, mistakes: float = 0.0, progress: Progress | None = None
    ) -> list[ExpertEpisode]:
        """The gold patch, applied and submitted. `mistakes`: there are none."""
        chosen = self.tasks(split)[:count]
        return [self._gold_episode(self.instances[task.id], task.kind) for task in chosen]

    @asynccontextmanager
    async def places(self, count: int) -> AsyncIterator[Places]:
        """Sandboxes for so many episodes at once: each has its agent's, and then two that grade."""
        async with Workplaces(self.config, SANDBOXES_EACH * count) as places:
            yield EpisodePlaces(self.instances, places, self.config)

    def _gold_episode(self, instance: Instance, kind: str) -> ExpertEpisode:
        turns_left = self.config.max_turns - 1 if self.config.remind else None
        steps = (
            ExpertStep(problem_of(instance, self.config.hints), gold_action(instance)),
            ExpertStep(observation(0, "", turns_left=turns_left), SUBMISSION),
        )
        return ExpertEpisode(instance.id, kind, steps)


class SWEBenchEnv(OutsideEnv):
    """`rocknroll/SWEBench-v0`."""

    def __init__(
        self, config: Mapping[str, Any] | None = None, split: str = "train", render_mode: str | None = None
    ) -> None:
        """`config`: fields of `SWEBenchConfig`."""
        super().__init__(SWEBenchFamily(config), split, render_mode)


def held_out(instance_id: str, share: float) -> bool:
    """Whether an instance is kept for evaluation; by its id alone, so that a growing data set never mixes the two."""
    return int(hashlib.sha256(instance_id.encode()).hexdigest()[:8], 16) < share * 2**32


def gold_action(instance: Instance) -> str:
    """The action that applies the gold patch."""
    end = "END_OF_PATCH"
    return as_action(f"git apply - <<'{end}'\n{instance.gold_patch.rstrip(chr(10))}\n{end}")
