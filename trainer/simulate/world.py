"""What a simulated run is like: how long tasks, turns and training take, and what goes wrong.

Every length and fault is a function of the world's seed and the episode, so that two schedulers which play the
same episode meet the same one, in whatever order they do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

Draw = Callable[[Random], float]
"""A random variable."""


@dataclass(frozen=True)
class Fixed:
    """Always `value`."""

    value: float

    def __call__(self, dice: Random) -> float:
        return self.value


@dataclass(frozen=True)
class Normal:
    """Normal with `mean` ≥ 0 and `std`, cut off at 0 (what falls below is drawn again)."""

    mean: float
    std: float

    def __call__(self, dice: Random) -> float:
        while (value := dice.gauss(self.mean, self.std)) < 0:
            pass
        return value


@dataclass(frozen=True)
class LogNormal:
    """Log-normal: long-tailed. `sigma` is the standard deviation of the logarithm; at most `most`."""

    median: float
    sigma: float
    most: float = math.inf

    def __call__(self, dice: Random) -> float:
        return min(self.most, self.median * math.exp(dice.gauss(0.0, self.sigma)))


@dataclass(frozen=True)
class Uniform:
    low: float
    high: float

    def __call__(self, dice: Random) -> float:
        return dice.uniform(self.low, self.high)


@dataclass(frozen=True)
class Luck:
    """What an episode will meet."""

    turns: int
    slow: bool
    fails_at: int | None
    """Turn whose environment step fails, ..."""
    hangs_at: int | None
    """... or never returns."""
    success: bool
    dice: Random
    """For the length of each of its turns, in order."""


@dataclass(frozen=True)
class World:
    """Machines, tasks and faults of a simulated run. Times are seconds of the virtual clock."""

    slots: int = 64
    """Environments, each of which plays one episode at a time."""
    engine_slots: int = 64
    """Requests that one engine decodes at once."""
    turns: Draw = Fixed(10)
    """Length of a task, drawn once for all members of its group, ..."""
    member_factor: Draw = Fixed(1.0)
    """... times this, drawn for each episode."""
    generate_s: Draw = Fixed(1.0)
    step_s: Draw = Fixed(1.0)
    train_s: Draw = Fixed(10.0)
    success: Draw = Uniform(0.0, 1.0)
    """Chance of success of a task's episodes; reward 1 or 0."""
    fail_rate: float = 0.0
    """Share of episodes that are lost to infrastructure."""
    hang_rate: float = 0.0
    """Share of episodes whose environment hangs, ..."""
    episode_timeout_s: float = 600.0
    """... which is noticed when the episode takes longer than this."""
    slow_fraction: float = 0.0
    """Share of episodes whose environment is slow, ..."""
    slow_factor: float = 5.0
    """... and how many times as long its steps take."""
    seed: int = 0

    def luck(self, group: int, member: int, attempt: int) -> Luck:
        """What this attempt of a member of a group meets."""
        task = Random(f"{self.seed}/{group}")
        turns, chance = self.turns(task), self.success(task)
        dice = Random(f"{self.seed}/{group}/{member}/{attempt}")
        length = max(1, round(turns * self.member_factor(dice)))
        fault, where, slow, won = dice.random(), dice.randrange(length), dice.random(), dice.random()
        return Luck(
            turns=length,
            slow=slow < self.slow_fraction,
            fails_at=where if fault < self.fail_rate else None,
            hangs_at=where if self.fail_rate <= fault < self.fail_rate + self.hang_rate else None,
            success=won < chance,
            dice=dice,
        )
