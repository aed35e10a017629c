"""Make one game: draw it, prove it solvable on the engine, put it in its place in one move."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

from rocknroll.envs.alfworld import package, pddl
from rocknroll.envs.alfworld.blueprint import draw
from rocknroll.envs.alfworld.catalogue import FOLDERS
from rocknroll.envs.alfworld.config import AlfWorldConfig, TaskType
from rocknroll.envs.alfworld.game import Game
from rocknroll.envs.alfworld.house import scene_numbers
from rocknroll.envs.alfworld.play import Player
from rocknroll.envs.text import EnvDataError

MOST_DRAWS = 20
"""Draws of one game before giving up; the first has always been solvable so far."""


def task_type_of(index: int, split: str, config: AlfWorldConfig) -> TaskType:
    """Types in shuffled rounds: every prefix of a split is balanced."""
    types = list(config.task_types)
    random.Random(f"{config.seed}/{split}/round/{index // len(types)}").shuffle(types)
    return types[index % len(types)]


def make_game(root: Path, split: str, index: int, player: Player) -> dict[str, Any]:
    """Make game `index` of a split below `root` (the folder to be `json_2.1.1`), unless it is there.

    Depends on (configuration, split, index) alone. Answers with `path` (relative to root), `kind`, `scene`.

    Raises:
        EnvDataError: the configuration allows no such game.
    """
    config = player.config
    task_type = task_type_of(index, split, config)
    numbers = scene_numbers(held_out=split == "unseen")
    for attempt in range(MOST_DRAWS):
        blueprint = draw(task_type, numbers, config, random.Random(f"{config.seed}/{split}/{index}/{attempt}"))
        name = f"trial_G{config.seed}_{split}_{index:05d}"
        relative = Path(FOLDERS[split]) / pddl.folder_name(blueprint) / name
        path = str(relative / "game.tw-pddl")
        answer = {"path": path, "kind": task_type, "scene": blueprint.scene}
        if (root / relative).exists():
            return answer
        data = pddl.game_data(blueprint, name)
        game = Game(path, task_type, data["pddl_domain"], data["pddl_problem"], data["grammar"], "game")
        walkthrough = player.solve(game, blueprint.solution)
        if walkthrough is None:
            continue
        data |= {"solvable": True, "walkthrough": walkthrough}
        scratch = root.parent / "scratch" / name
        shutil.rmtree(scratch, ignore_errors=True)
        pddl.write(scratch, data, pddl.trajectory_data(blueprint, name))
        (root / relative).parent.mkdir(parents=True, exist_ok=True)
        scratch.replace(root / relative)
        return answer
    raise EnvDataError(
        f"{MOST_DRAWS} games of type {task_type} in a row could not be solved; please report seed {config.seed}, "
        f"{split} {index} and these versions: {package.versions()}"
    )
