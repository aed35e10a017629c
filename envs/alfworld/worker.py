"""A worker process: makes games, plays the expert, or asks the official loader; one JSON line per item."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rocknroll.envs.alfworld import package
from rocknroll.envs.alfworld.catalogue import DATA_FOLDER, FOLDERS
from rocknroll.envs.alfworld.config import AlfWorldConfig
from rocknroll.envs.alfworld.make import make_game
from rocknroll.envs.alfworld.play import Player
from rocknroll.envs.text import EnvDataError

Job = Callable[[dict[str, Any], Any, Player], dict[str, Any]]


def main() -> int:
    """Read a job, do its items, stop at the first that fails."""
    job = json.load(sys.stdin)
    player = Player(AlfWorldConfig.model_validate(job["config"]))
    try:
        for item in job["items"]:
            with contextlib.redirect_stdout(sys.stderr):  # the loader and the translator chat
                answer = JOBS[job["job"]](job, item, player)
            print(json.dumps(answer), flush=True)
    except EnvDataError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    finally:
        player.close()
    return 0


def _make(job: dict[str, Any], item: Any, player: Player) -> dict[str, Any]:
    split, index = item
    return make_game(Path(job["folder"]), split, index, player)


def _play(job: dict[str, Any], item: Any, player: Player) -> dict[str, Any]:
    game, seed = item
    return player.episode(game, mistakes=job["mistakes"], seed=seed)


def _list(job: dict[str, Any], folder: str, player: Player) -> dict[str, Any]:
    """Games of a folder according to the package's own `AlfredTWEnv`, set up as its documentation has it."""
    data = Path(job["root"]) / DATA_FOLDER
    stages = {"train": "train", "valid_seen": "eval_in_distribution", "valid_unseen": "eval_out_of_distribution"}
    settings = {
        "dataset": {
            "data_path": str(data / FOLDERS["train"]),
            "eval_id_data_path": str(data / FOLDERS["seen"]),
            "eval_ood_data_path": str(data / FOLDERS["unseen"]),
            "num_train_games": -1,
            "num_eval_games": -1,
        },
        "env": {"goal_desc_human_anns_prob": 0, "task_types": [1, 2, 3, 4, 5, 6]},
    }
    loader = package.stock().AlfredTWEnv(settings, train_eval=stages[folder])
    return {"games": loader.game_files}


JOBS: dict[str, Job] = {"make": _make, "play": _play, "list": _list}


if __name__ == "__main__":
    sys.exit(main())
