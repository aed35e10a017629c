"""Any Gymnasium environment with faults and delays put in, for chaos tests and benchmarks.

Runs inside the sandbox around the real environment, so that what is injected takes the way of the real
thing: an exception comes back from the host, a hang meets the agent's deadline, a wait holds this
sandbox and nothing else. What happens in an episode follows from its seed alone.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium

from rocknroll.envs.host import load

ENTRY_POINT = "rocknroll.envs.faulty:FaultyEnv"
FAULT_SEED = "fault_seed"
"""Option of `reset` that decides what goes wrong in the episode; the environment itself never sees it."""
NAP_S = 3600.0


class InjectedFault(RuntimeError):
    """A step was told to fail."""


@dataclass(frozen=True)
class Faults:
    """What goes wrong, and how long steps wait; the fields mean what they mean in the recipe's `env.faults`."""

    error_rate: float = 0.0
    hang_rate: float = 0.0
    latency_s: float = 0.0
    latency_std_s: float = 0.0
    slow_fraction: float = 0.0
    slow_factor: float = 5.0


class FaultyEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The environment at `entry_point` (`package.module:Class`) with `kwargs`, under `faults` (fields of `Faults`).

    Without the option `fault_seed` an episode's faults follow from the seed given to `reset`; without either they
    go on from the last episode's.
    """

    def __init__(self, entry_point: str, kwargs: Mapping[str, Any], faults: Mapping[str, float]) -> None:
        super().__init__(load(entry_point)(**kwargs))
        self._faults = Faults(**faults)
        self._random = random.Random()
        self._slowness = 1.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; a slow one with probability `slow_fraction`."""
        own = dict(options or {})
        fault_seed = own.pop(FAULT_SEED, seed)
        if fault_seed is not None:
            self._random = random.Random(str(fault_seed))
        slow = self._random.random() < self._faults.slow_fraction
        self._slowness = self._faults.slow_factor if slow else 1.0
        return self.env.reset(seed=seed, options=None if options is None else own)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Wait, then fail, hang, or do what the environment does.

        Raises:
            InjectedFault: with probability `error_rate`; the environment has not seen the action.
        """
        fate, wait_s = self._random.random(), self._wait_s()
        if wait_s > 0:
            time.sleep(wait_s)
        if fate < self._faults.error_rate:
            raise InjectedFault("this step was told to fail (`env.faults.error_rate`)")
        while fate >= 1.0 - self._faults.hang_rate:
            time.sleep(NAP_S)
        return self.env.step(action)

    def _wait_s(self) -> float:
        """A draw from the normal distribution truncated at 0, by rejection: its mean is not negative."""
        faults = self._faults
        if not (faults.latency_s or faults.latency_std_s):
            return 0.0
        while (wait_s := self._random.gauss(faults.latency_s, faults.latency_std_s)) < 0:
            pass
        return wait_s * self._slowness
