"""The games of a configuration: generated once into the cache, or found in the official data.

A generated library is a folder named by the content of its configuration. It appears in one rename;
until then it grows under `.partial`, one finished game at a time, so that an interrupted run goes on
where it stopped.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rocknroll.envs.alfworld import official
from rocknroll.envs.alfworld.catalogue import DATA_FOLDER, GameRef, Library
from rocknroll.envs.alfworld.config import SPLITS, AlfWorldConfig
from rocknroll.envs.alfworld.workers import spread
from rocknroll.envs.cache import cache_root
from rocknroll.envs.text import EnvDataError, Progress

FORMAT = 1
"""Part of the key: raise it when the generator draws other games than before."""


def library(config: AlfWorldConfig) -> Library:
    """The library of a configuration.

    Raises:
        EnvDataError: official data is asked for and not there.
    """
    root = official.find(config)
    return GeneratedLibrary(config) if root is None else official.OfficialLibrary(config, root)


class GeneratedLibrary:
    """Games made from a seed."""

    def __init__(self, config: AlfWorldConfig) -> None:
        self._config = config
        self.root = cache_root(config.cache_dir) / "alfworld" / "games" / self.key
        self._index: dict[str, list[GameRef]] | None = None

    @property
    def key(self) -> str:
        """Content of everything that decides the games."""
        from rocknroll.envs.alfworld import package

        fields = self._config.model_dump(
            mode="json",
            include={"seed", "train_games", "seen_games", "unseen_games", "task_types", "max_receptacles", "objects"},
        )
        content = json.dumps([FORMAT, package.versions(), fields], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:20]

    def prepare(self, progress: Progress | None = None) -> None:
        if (self.root / "index.json").exists():
            return
        with _only_one(self.root.with_suffix(".lock")):
            if not (self.root / "index.json").exists():
                self._make(progress)

    def games(self, split: str) -> Sequence[GameRef]:
        if split not in SPLITS:
            raise EnvDataError(f"ALFWorld has no split {split!r}; it has {', '.join(SPLITS)}")
        if self._index is None:
            self.prepare()
            index: dict[str, list[dict[str, Any]]] = json.loads((self.root / "index.json").read_text(encoding="utf-8"))
            self._index = {
                name: [GameRef(str(self.root / DATA_FOLDER / ref["path"]), ref["kind"], ref["scene"]) for ref in refs]
                for name, refs in index.items()
            }
        return self._index[split]

    def _make(self, progress: Progress | None) -> None:
        partial = self.root.with_suffix(".partial")
        items = [(split, number) for split in SPLITS for number in range(self._config.games_in(split))]
        for split in SPLITS:
            if not self._config.games_in(split):
                continue
            (partial / DATA_FOLDER).mkdir(parents=True, exist_ok=True)
        job = {"job": "make", "config": self._config.model_dump(mode="json"), "folder": str(partial / DATA_FOLDER)}
        answers = spread(job, items, progress)
        index: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
        for (split, _), answer in zip(items, answers, strict=True):
            index[split].append(answer)
        partial.mkdir(parents=True, exist_ok=True)
        (partial / "index.json").write_text(json.dumps(index), encoding="utf-8")
        shutil.rmtree(partial / "scratch", ignore_errors=True)
        shutil.rmtree(self.root, ignore_errors=True)
        partial.replace(self.root)


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Let one process at a time in; released by the kernel when the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
