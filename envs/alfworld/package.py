"""The one place that imports the `alfworld` package.

Importing it creates a folder at `$ALFWORLD_DATA` and sets that variable when it was unset. Sandboxes
may have no writable home, and this project asks the variable what the *user* said, so both effects
are undone here.
"""

from __future__ import annotations

import os
import tempfile
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType

DATA_VARIABLE = "ALFWORLD_DATA"


def _import(name: str) -> ModuleType:
    said = os.environ.get(DATA_VARIABLE)
    os.environ[DATA_VARIABLE] = tempfile.gettempdir()
    try:
        return import_module(name)
    finally:
        if said is None:
            del os.environ[DATA_VARIABLE]
        else:
            os.environ[DATA_VARIABLE] = said


def constants() -> ModuleType:
    """Scenes, object names, affordances and what fits where."""
    return _import("alfworld.gen.constants")


def goals() -> ModuleType:
    """PDDL goals and goal sentences by task type."""
    return _import("alfworld.gen.goal_library")


def naming() -> ModuleType:
    """`Demangler`: from PDDL names to the names a player reads."""
    return _import("alfworld.agents.utils.misc")


def stock() -> ModuleType:
    """The package's own environment: loader (`AlfredTWEnv`) and wrappers."""
    return _import("alfworld.agents.environment.alfred_tw_env")


def folder() -> Path:
    """Where the package is installed."""
    return Path(str(_import("alfworld").__file__)).parent


@cache
def domain() -> str:
    """The planning domain of this version of the package."""
    return (folder() / "data" / "alfred.pddl").read_text(encoding="utf-8")


@cache
def grammar() -> str:
    """The text grammar of this version of the package, with `UNKNOWN GOAL` where the task goes."""
    return (folder() / "data" / "alfred.twl2").read_text(encoding="utf-8")


@cache
def versions() -> dict[str, str]:
    """Versions of everything that decides what a game says; part of every cache key."""
    return {name: metadata.version(name) for name in ("alfworld", "textworld", "fast-downward-textworld")}
