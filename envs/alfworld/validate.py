"""Are the games any good? The expert plays them, and the official loader is asked what it accepts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rocknroll.envs.alfworld.catalogue import FOLDERS
from rocknroll.envs.alfworld.config import AlfWorldConfig
from rocknroll.envs.alfworld.episodes import play
from rocknroll.envs.alfworld.family import AlfWorldFamily
from rocknroll.envs.alfworld.workers import spread
from rocknroll.envs.text import Progress, Task

EXPERT_SEED = 0
"""The expert itself draws nothing; the seed only names the record in the cache."""


@dataclass(frozen=True)
class TaskCount:
    """Games of one task type."""

    total: int
    solved: int


@dataclass(frozen=True)
class ValidateReport:
    """What became of the games."""

    total: int
    solved: int
    """Solved by the expert within `max_steps`."""
    accepted: int
    """Games that the official loader lists, of those that were played."""
    by_task: Mapping[str, TaskCount]
    unsolved: tuple[str, ...]
    """Paths of the games that the expert did not solve."""
    source: str
    """The folder that holds `json_2.1.1`."""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def validate(config: AlfWorldConfig, games: int, progress: Progress | None = None) -> ValidateReport:
    """Play `games` games, half of them (rounded up) in training scenes and half in held-out ones.

    Generated games are made for this; of official data the first ones of each split are taken.

    Raises:
        EnvDataError: there is no data, or a game is broken.
    """
    shares = {"train": games - games // 2, "unseen": games // 2}
    family = AlfWorldFamily(
        config.model_copy(update={"train_games": shares["train"], "seen_games": 0, "unseen_games": shares["unseen"]})
    )
    family.prepare(progress)
    tasks = [task for split, share in shares.items() for task in family.tasks(split)[:share]]
    records = play(family.config, tasks, EXPERT_SEED, 0.0, progress)
    listed = officially_listed(family, [split for split, share in shares.items() if share])
    kinds = sorted({task.kind for task in tasks})
    played = list(zip(tasks, records, strict=True))
    return ValidateReport(
        total=len(tasks),
        solved=sum(record["won"] for record in records),
        accepted=sum(_path(task) in listed for task in tasks),
        by_task={
            kind: TaskCount(
                total=sum(task.kind == kind for task in tasks),
                solved=sum(record["won"] for task, record in played if task.kind == kind),
            )
            for kind in kinds
        },
        unsolved=tuple(task.options["game"] for task, record in played if not record["won"]),
        source=str(family.data_root),
    )


def officially_listed(family: AlfWorldFamily, splits: list[str]) -> set[Path]:
    """Game files that the package's own `AlfredTWEnv` finds in the family's folder."""
    job = {"job": "list", "config": family.config.model_dump(mode="json"), "root": str(family.data_root)}
    answers = spread(job, [FOLDERS[split] for split in splits])
    return {Path(path).resolve() for answer in answers for path in answer["games"]}


def _path(task: Task) -> Path:
    return Path(task.options["game"]).resolve()
