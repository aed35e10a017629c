"""Environments as users write them, which can be told to misbehave."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium

TEXT = gymnasium.spaces.Text(min_length=0, max_length=1000)


class Lock(gymnasium.Env[str, str]):
    """Opened by the number of its task, within five tries."""

    instructions = "Say the number that opens the lock."
    observation_space = action_space = TEXT

    @staticmethod
    def tasks(split: str) -> list[dict[str, Any]]:
        numbers = {"train": range(8), "seen": range(0), "unseen": range(8, 10)}[split]
        return [{"number": number} for number in numbers]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        assert options is not None
        self.number, self.tries = options["number"], 0
        return "A lock.", {"won": False}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.tries += 1
        won = action == str(self.number)
        match action:
            case "crash":
                os._exit(7)
            case "hang":
                time.sleep(3600)
            case "raise":
                raise ValueError("the lock is jammed")
            case "chance":
                action = os.urandom(8).hex()
            case "nap":
                began_s = time.monotonic()
                time.sleep(2.0)
                action = f"{began_s} {time.monotonic()}"
        text = "It opens." if won else f"{action}: closed, try {self.tries}"
        return text, float(won), won, self.tries >= 5, {"won": won, "tries": self.tries}


class Die(gymnasium.Env[str, str]):
    """Without tasks: what it shows follows from the seed of `reset`."""

    observation_space = action_space = TEXT

    def __init__(self, sides: int = 6) -> None:
        self.sides = sides

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.shown = str(self.np_random.integers(self.sides))
        return self.shown, {"options": options}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", float(action == self.shown), True, False, {}


class Broken(Lock):
    """Cannot be made."""

    def __init__(self) -> None:
        raise RuntimeError("cannot be made")


class Numeric(Die):
    """Not of text."""

    action_space = gymnasium.spaces.Discrete(3)  # type: ignore[assignment]


class Unready(Lock):
    """Cannot be reset."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        raise ValueError("not ready")
