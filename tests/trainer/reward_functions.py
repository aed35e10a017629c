"""Reward functions that tests name in recipes; each runs in a worker process."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Episode = Mapping[str, Any]


def longest_action(episode: Episode) -> float:
    return float(max(len(turn["action"]) for turn in episode["turns"]))


def as_told(episode: Episode) -> Any:
    """Does what the task's options say: `sleep_s`, `raise`, `die`, `value`, `print`."""
    options = episode["options"]
    if "file" in options:
        with Path(options["file"]).open("a") as file:
            file.write(f"{os.getpid()}\n")
    time.sleep(options.get("sleep_s", 0.0))
    if "die" in options:
        os._exit(7)
    if "exit" in options:
        sys.exit(3)
    if "raise" in options:
        raise TimeoutError(options["raise"])
    if "print" in options:
        print(options["print"])
    return options.get("value", 1.0)


def everything(episode: Episode) -> tuple[float, bool]:
    expected = {
        "task_id": "t",
        "kind": "k",
        "options": {"a": [1]},
        "turns": [{"observation": "o", "action": "look", "reward": 0.5}],
        "success": True,
    }
    return float(episode == expected), False


def heavy_modules(episode: Episode) -> float:
    return float(any(name in sys.modules for name in ("torch", "transformers", "numpy")))


not_a_function = 3
