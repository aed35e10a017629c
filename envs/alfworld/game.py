"""Read one game file, official or generated, and say precisely what is wrong with a broken one."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rocknroll.envs.alfworld import package
from rocknroll.envs.text import EnvDataError

FIELDS = ("pddl_domain", "grammar", "pddl_problem")


@dataclass(frozen=True)
class Game:
    """What the engine plays."""

    path: str
    task_type: str
    domain: str
    problem: str
    grammar: str
    grammar_source: str
    """`game` or `installed` (an older grammar was replaced by the installed package's)."""


@lru_cache(maxsize=8)
def read(path: str, refresh_grammar: bool) -> Game:
    """Read a game and the trajectory file beside it.

    Raises:
        EnvDataError: a file is missing or broken; the text names it and says why.
    """
    game = _json(Path(path))
    trajectory_path = Path(path).parent / "traj_data.json"
    trajectory = _json(trajectory_path)
    for field in FIELDS:
        if not isinstance(game.get(field), str):
            raise broken(path, f"it has no text under `{field}`")
    if not isinstance(trajectory.get("task_type"), str):
        raise broken(trajectory_path, "it has no text under `task_type`")
    domain, grammar, source = game["pddl_domain"], game["grammar"], "game"
    if refresh_grammar:
        from rocknroll.envs.alfworld.grammar import TASK_MARK, without_task

        shared, task = without_task(grammar)
        installed, _ = without_task(package.grammar())
        if task and shared != installed:
            domain, grammar, source = package.domain(), installed.replace(TASK_MARK, task), "installed"
    return Game(str(path), trajectory["task_type"], domain, game["pddl_problem"], grammar, source)


_PUT = re.compile(r'action PutObject \{\s*template :: "([^"]*)"')


def put_template(grammar: str) -> str:
    """How a grammar puts things down, with `{thing}` and `{place}`; it changed between versions of the package."""
    found = _PUT.search(grammar)
    return found[1].replace("{o}", "{thing}").replace("{r}", "{place}") if found else "move {thing} to {place}"


def broken(path: str | Path, why: str) -> EnvDataError:
    """The error for a game that cannot be played."""
    return EnvDataError(
        f"{path} cannot be played: {' '.join(why.split())}. Delete that game's folder, or fetch the official data "
        "(`alfworld-download`); generated games are made anew when their folder in the cache is deleted."
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise broken(path, "the file does not exist") from error
    except OSError as error:
        raise broken(path, f"it cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise broken(path, f"it is not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise broken(path, "it is JSON, but not an object")
    return content
