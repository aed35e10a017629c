"""Where rollout time goes, and what was lost: idle fractions, throughput and faults between two batches."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rocknroll.trainer.trajectory import Group

SIDES = ("engine", "environments", "learner")


@dataclass(frozen=True)
class Reading:
    """Counters since the start of the run."""

    slot_busy_s: float
    """Slot-seconds spent in episodes, ..."""
    slots_s: float
    """... and all that there were."""
    engine: Mapping[str, float] = field(default_factory=dict)
    """See `Engine.metrics`."""
    environment_busy_s: float = 0.0
    """Sandbox-seconds spent in steps and resets, of lost and cancelled episodes, too."""
    faults: Mapping[str, float] = field(default_factory=dict)
    """Losses and the like by cause."""


class Meter:
    """Differences of running counters from one batch to the next."""

    def __init__(self) -> None:
        self._time = time.perf_counter()
        self._last = Reading(0.0, 0.0)

    def read(self, groups: Sequence[Group], now: Reading, waited_s: float) -> dict[str, float]:
        """Metrics of the interval since the last call.

        Args:
            groups: the batch that closes the interval.
            now: the counters.
            waited_s: how long the learner waited for this batch.
        """
        time_s = time.perf_counter()
        wall_s = max(time_s - self._time, 1e-9)
        last, self._time, self._last = self._last, time_s, now
        spent = _differences(last.engine, now.engine)
        slots_s = max(now.slots_s - last.slots_s, 1e-9)
        episodes = sum(len(group.trajectories) for group in groups)
        faults = {f"faults/{cause}": count for cause, count in _differences(last.faults, now.faults).items()}
        return {
            "idle/engine": 1.0 - min(1.0, spent.get("busy_s", 0.0) / wall_s),
            "idle/environments": 1.0 - min(1.0, (now.environment_busy_s - last.environment_busy_s) / slots_s),
            "idle/slots": 1.0 - min(1.0, (now.slot_busy_s - last.slot_busy_s) / slots_s),
            "idle/learner": min(1.0, waited_s / wall_s),
            "rollout/slots": slots_s / wall_s,
            "rollout/tokens_per_s": spent.get("tokens_generated", 0.0) / wall_s,
            "rollout/reused_tokens": spent.get("tokens_reused", 0.0),
            "rollout/prefilled_tokens": spent.get("tokens_prefilled", 0.0),
            "rollout/episodes_per_min": 60.0 * episodes / wall_s,
            **faults,
        }


def bottleneck(metrics: Mapping[str, float]) -> str:
    """Which side of the run is busiest: `engine`, `environments` or `learner`; empty where the metrics do not say.

    The others wait for it, so it is the one that more cores, sandboxes or slots would help.
    """
    idle = {side: metrics[f"idle/{side}"] for side in SIDES if f"idle/{side}" in metrics}
    return min(idle, key=idle.__getitem__, default="")


def _differences(last: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    return {name: value - last.get(name, 0.0) for name, value in now.items()}
