"""The official data: where it is, whether it is whole, which of its games are played."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from rocknroll.envs.alfworld.catalogue import DATA_FOLDER, FOLDERS, GameRef, balanced
from rocknroll.envs.alfworld.config import SPLITS, AlfWorldConfig
from rocknroll.envs.alfworld.game import broken
from rocknroll.envs.cache import cache_root
from rocknroll.envs.text import EnvDataError, Progress

VARIABLE = "ALFWORLD_DATA"

FETCH = (
    "Run `alfworld-download` and point $ALFWORLD_DATA at what it made, "
    "or set env.config.data=generated to play generated games."
)


def find(config: AlfWorldConfig) -> Path | None:
    """The folder that holds `json_2.1.1`, or None when games are to be generated.

    Raises:
        EnvDataError: official data is wanted and the folder does not have it.
    """
    if config.data == "generated":
        return None
    said = config.data_path or os.environ.get(VARIABLE)
    if not said:
        if config.data == "official":
            raise EnvDataError(
                f"env.config.data is `official`, but neither data_path nor ${VARIABLE} says where the data is. {FETCH}"
            )
        return None
    root = Path(said).expanduser().resolve()
    for folder in FOLDERS.values():
        if not (root / DATA_FOLDER / folder).is_dir():
            raise EnvDataError(
                f"the ALFWorld data at {root} is incomplete: {DATA_FOLDER}/{folder} is not there. {FETCH}"
            )
    return root


class OfficialLibrary:
    """Games of the official data, chosen as the official loader chooses them."""

    def __init__(self, config: AlfWorldConfig, root: Path) -> None:
        self._config = config
        self.root = root
        self._found: dict[str, list[GameRef]] = {}

    def prepare(self, progress: Progress | None = None) -> None:
        for number, split in enumerate(SPLITS):
            self.games(split)
            if progress is not None:
                progress(number + 1, len(SPLITS))

    def games(self, split: str) -> Sequence[GameRef]:
        if split not in SPLITS:
            raise EnvDataError(f"ALFWorld has no split {split!r}; it has {', '.join(SPLITS)}")
        if split not in self._found:
            wanted = [ref for ref in self._listed(split) if ref.kind in self._config.task_types]
            if not wanted and self._config.games_in(split):
                raise EnvDataError(
                    f"the ALFWorld data at {self.root} is incomplete: {DATA_FOLDER}/{FOLDERS[split]} has no playable "
                    f"game of the task types {', '.join(self._config.task_types)}. {FETCH}"
                )
            self._found[split] = balanced(wanted, self._config.games_in(split), f"{self._config.seed}/{split}")
        return self._found[split]

    def _listed(self, split: str) -> list[GameRef]:
        """All playable games of a split. Looking into thousands of files takes minutes, so the list is cached."""
        folder = self.root / DATA_FOLDER / FOLDERS[split]
        names = sorted(str(path.relative_to(folder)) for path in folder.glob("*/*/traj_data.json"))
        key = hashlib.sha256(json.dumps([str(folder), names]).encode()).hexdigest()[:20]
        cached = cache_root(self._config.cache_dir) / "alfworld" / "official" / f"{key}.json"
        if cached.exists():
            return [GameRef(**ref) for ref in json.loads(cached.read_text(encoding="utf-8"))]
        refs = [ref for name in names if (ref := _look(folder / name)) is not None]
        cached.parent.mkdir(parents=True, exist_ok=True)
        scratch = cached.with_suffix(f".{os.getpid()}")
        scratch.write_text(json.dumps([vars(ref) for ref in refs]), encoding="utf-8")
        scratch.replace(cached)
        return refs


def _look(trajectory: Path) -> GameRef | None:
    """The game beside a trajectory file, unless the official loader would skip it."""
    game = trajectory.with_name("game.tw-pddl")
    if "movable" in str(trajectory) or "Sliced" in str(trajectory) or not game.exists():
        return None
    try:
        described = json.loads(trajectory.read_text(encoding="utf-8"))
        if not json.loads(game.read_text(encoding="utf-8")).get("solvable"):
            return None
        return GameRef(str(game), described["task_type"], int(described["scene"]["scene_num"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise broken(
            game, f"it or its traj_data.json is not what the loader expects ({type(error).__name__}: {error})"
        ) from error
