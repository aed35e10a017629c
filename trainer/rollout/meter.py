"""Where rollout time goes: idle fractions and throughput between two batches."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from rocknroll.trainer.trajectory import Group


class Meter:
    """Differences of running counters from one batch to the next."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._time = time.perf_counter()
        self._engine: Mapping[str, float] = {}
        self._slot_busy_s = 0.0

    def read(
        self, groups: Sequence[Group], engine: Mapping[str, float], slot_busy_s: float, waited_s: float
    ) -> dict[str, float]:
        """Metrics of the interval since the last call.

        Args:
            groups: the batch that closes the interval.
            engine: the engine's counters since its start.
            slot_busy_s: slot-seconds spent in episodes since the start.
            waited_s: how long the learner waited for this batch.
        """
        now = time.perf_counter()
        wall_s = max(now - self._time, 1e-9)
        spent = {key: value - self._engine.get(key, 0.0) for key, value in engine.items()}
        busy_share = (slot_busy_s - self._slot_busy_s) / (wall_s * self._slots)
        self._time, self._engine, self._slot_busy_s = now, dict(engine), slot_busy_s
        episodes = [t for group in groups for t in group.trajectories]
        environment_s = sum(t.timings_s.get("environment", 0.0) for t in episodes)
        return {
            "idle/engine": 1.0 - min(1.0, spent.get("busy_s", 0.0) / wall_s),
            "idle/environments": 1.0 - min(1.0, environment_s / (wall_s * self._slots)),
            "idle/slots": 1.0 - min(1.0, busy_share),
            "idle/learner": min(1.0, waited_s / wall_s),
            "rollout/tokens_per_s": spent.get("tokens_generated", 0.0) / wall_s,
            "rollout/reused_tokens": spent.get("tokens_reused", 0.0),
            "rollout/prefilled_tokens": spent.get("tokens_prefilled", 0.0),
            "rollout/episodes_per_min": 60.0 * len(episodes) / wall_s,
        }
