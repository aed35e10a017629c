"""A worker process: makes games or plays the expert, one JSON line per item (see `workers`)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rocknroll.envs.alfworld.config import AlfWorldConfig
from rocknroll.envs.alfworld.make import make_game
from rocknroll.envs.alfworld.play import Player
from rocknroll.envs.text import EnvDataError


def main() -> int:
    """Read a job, do its items, stop at the first that fails."""
    job = json.load(sys.stdin)
    config = AlfWorldConfig.model_validate(job["config"])
    player = Player(config)
    try:
        for item in job["items"]:
            print(json.dumps(_do(job, item, config, player)), flush=True)
    except EnvDataError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    finally:
        player.close()
    return 0


def _do(job: dict[str, Any], item: Any, config: AlfWorldConfig, player: Player) -> dict[str, Any]:
    if job["job"] == "make":
        split, index = item
        return make_game(Path(job["folder"]), split, index, config, player)
    game, seed = item
    return player.episode(game, noise=job["noise"], seed=seed)


if __name__ == "__main__":
    sys.exit(main())
