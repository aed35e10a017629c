"""A small environment that can be told to misbehave, and helpers to look at processes from outside."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium

HERE = Path(__file__).parent
WAIT_S = 30.0
"""Only ever waited in full when a test fails."""


class Plaything(gymnasium.Env[str, str]):
    """Counts steps; the action says what to do."""

    def __init__(self, greeting: str = "hello", broken: bool = False) -> None:
        if broken:
            raise RuntimeError("cannot be made")
        self.greeting = greeting
        self.action_space = gymnasium.spaces.Text(64)
        self.observation_space = gymnasium.spaces.Text(1000)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.greeting, {"pid": os.getpid(), "options": options, "draw": int(self.np_random.integers(1 << 30))}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        match action:
            case "raise":
                raise ValueError("no such drawer")
            case "hang":
                time.sleep(3600)
            case "crash":
                os._exit(7)
            case "object":
                return "odd", 0.0, False, False, {"thing": object()}
            case "write":
                Path("note").write_text(str(self.steps))
        return f"{action} {self.steps}", 0.5, action == "win", self.steps >= 5, {"steps": self.steps}


def _chain(pid: int, parents: dict[int, int]) -> list[int]:
    chain = []
    while pid > 1 and pid not in chain:
        chain.append(pid)
        pid = parents.get(pid, 0)
    return chain


def descendants(pid: int) -> list[int]:
    """Living processes below `pid`."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if stat[0] != "Z":
                parents[int(folder.name)] = int(stat[1])
    return [child for child in parents if child != pid and pid in _chain(child, parents)]


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition, synchronously."""
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"never happened: {what}"
        time.sleep(0.005)
