"""Episodes of the expert, played once and kept as compressed JSON lines."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rocknroll.envs.alfworld.config import AlfWorldConfig
from rocknroll.envs.alfworld.workers import spread
from rocknroll.envs.cache import cache_root
from rocknroll.envs.text import ExpertEpisode, ExpertStep, Progress, Task

FORMAT = 1
"""Part of the key: raise it when the expert or the record changes."""


def expert_episodes(
    config: AlfWorldConfig, tasks: Sequence[Task], seed: int, mistakes: float, progress: Progress | None = None
) -> list[ExpertEpisode]:
    """Solved episodes, in the order of the tasks; unsolved ones are left out."""
    records = play(config, tasks, seed, mistakes, progress)
    return [
        ExpertEpisode(
            task_id=task.id,
            kind=task.kind,
            steps=tuple(
                ExpertStep(observation, action, tuple(admissible), imitate)
                for observation, action, admissible, imitate in record["steps"]
            ),
        )
        for task, record in zip(tasks, records, strict=True)
        if record["won"]
    ]


def play(
    config: AlfWorldConfig, tasks: Sequence[Task], seed: int, mistakes: float, progress: Progress | None = None
) -> list[dict[str, Any]]:
    """The expert's episode of every task, solved or not: `kind`, `won`, `steps`."""
    cached = _path(config, tasks, seed, mistakes)
    if cached.exists():
        with gzip.open(cached, "rt", encoding="utf-8") as file:
            return [json.loads(line) for line in file]
    job = {"job": "play", "config": config.model_dump(mode="json"), "mistakes": mistakes}
    records = spread(job, [(task.options["game"], seed) for task in tasks], progress)
    cached.parent.mkdir(parents=True, exist_ok=True)
    scratch = cached.with_suffix(f".{os.getpid()}")
    with gzip.open(scratch, "wt", encoding="utf-8", compresslevel=3) as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    scratch.replace(cached)
    return records


def content_key(config: AlfWorldConfig, games: Sequence[tuple[str, str]]) -> str:
    """Hash of everything that decides how the expert plays these games (id and path of each)."""
    from rocknroll.envs.alfworld import package

    played = config.model_dump(mode="json", include={"max_steps", "banner", "refresh_grammar", "repeat_task"})
    stats = [(name, Path(path).stat()) for name, path in games]
    files = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    expert = (Path(__file__).parent / "expert.py").read_text(encoding="utf-8")
    content = json.dumps([FORMAT, package.versions(), played, files, expert], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:24]


def _path(config: AlfWorldConfig, tasks: Sequence[Task], seed: int, mistakes: float) -> Path:
    games = [(task.id, str(task.options["game"])) for task in tasks]
    name = hashlib.sha256(json.dumps([content_key(config, games), seed, mistakes]).encode()).hexdigest()[:24]
    return cache_root(config.cache_dir) / "alfworld" / "episodes" / f"{name}.jsonl.gz"
