"""What runs inside a reward worker: the recipe's function, one finished episode at a time. Imports nothing heavy.

The function gets a mapping of plain values (`docs/rollouts/rewards.md` lists them) and returns a number, or
a number and whether the answer was correct.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

RewardFunction = Callable[[Mapping[str, Any]], "float | tuple[float, bool]"]

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Evaluated:
    """What the function said, or why it said nothing."""

    value: float = 0.0
    correct: bool = False
    took_s: float = 0.0
    error: str = ""


def load(name: str) -> RewardFunction:
    """The function called `package.module:function`.

    Raises:
        ValueError: there is no such function; the message is for whoever wrote the recipe.
    """
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise ValueError("it is not of the form `package.module:function`")
    try:
        function = getattr(import_module(module_name), function_name)
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    if not callable(function):
        raise ValueError(f"{function_name} is not a function")
    found: RewardFunction = function
    return found


_loaded: tuple[RewardFunction | None, str] = (None, "the worker was not prepared")


def prepare(name: str, parent: int) -> None:
    """Once per worker process: end with the parent, leave its standard output alone, and import the function."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it died before the line above
    os.dup2(2, 1)
    learn(name)


def learn(name: str) -> None:
    """Import the function, or remember why it cannot be."""
    global _loaded
    try:
        _loaded = load(name), ""
    except ValueError as error:
        _loaded = None, str(error)


def complaint() -> str:
    """Why the function cannot be used; empty if it can."""
    return _loaded[1]


def evaluate(episode: Mapping[str, Any]) -> Evaluated:
    """Call the function. Whatever it raises is told and never kills the worker."""
    function, missing = _loaded
    if function is None:
        return Evaluated(error=missing)
    start = time.perf_counter()
    try:
        said = function(episode)
        value, correct = said if isinstance(said, tuple) else (said, float(said) > 0)
        number = float(value)
    except BaseException as error:
        return Evaluated(error=f"{type(error).__name__}: {error}")
    if not math.isfinite(number):
        return Evaluated(error=f"it returned {number}, which is no reward")
    return Evaluated(number, bool(correct), time.perf_counter() - start)
