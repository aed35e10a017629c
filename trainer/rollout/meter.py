"""Where rollout time goes: idle fractions, throughput and staleness between two batches."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from rocknroll.trainer.trajectory import Group


class Meter:
    """Differences of running counters from one batch to the next."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._time = time.perf_counter()
        self._engine: Mapping[str, float] = {}
        self._slot_busy_s = 0.0

    def read(
        self, groups: Sequence[Group], version: int, engine: Mapping[str, float], slot_busy_s: float, waited_s: float
    ) -> dict[str, float]:
        """Metrics of the interval since the last call.

        Args:
            groups: the batch that closes the interval.
            version: policy version that consumes it.
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
            **staleness(groups, version),
            **behaviour(groups),
        }


def staleness(groups: Sequence[Group], version: int) -> dict[str, float]:
    """Consuming version − oldest token's version: mean, maximum and a histogram of shares."""
    ages = Counter(version - t.oldest_version for g in groups for t in g.trajectories if t.action_mask.any())
    total = sum(ages.values())
    if not total:
        return {}
    shares = {f"staleness/share_{age}": count / total for age, count in sorted(ages.items())}
    mean = sum(age * count for age, count in ages.items()) / total
    return {"staleness/mean": mean, "staleness/max": float(max(ages)), **shares}


def behaviour(groups: Sequence[Group]) -> dict[str, float]:
    """What the policy did in this batch."""
    episodes = [t for group in groups for t in group.trajectories]
    turns = [turn for t in episodes for turn in t.turns]
    by_kind: dict[str, list[bool]] = {}
    for t in episodes:
        by_kind.setdefault(t.task_kind, []).append(t.success)
    return {
        "train/success": float(np.mean([t.success for t in episodes])),
        "train/reward": float(np.mean([t.reward for t in episodes])),
        "train/turns": float(np.mean([len(t.turns) for t in episodes])),
        "train/tokens": float(np.mean([t.token_ids.size for t in episodes])),
        "train/invalid_actions": float(np.mean([not turn.valid for turn in turns])) if turns else 0.0,
        "train/constant_groups": float(np.mean([np.ptp(g.rewards) < 1e-9 for g in groups])),
        **{f"success/{kind}": float(np.mean(won)) for kind, won in sorted(by_kind.items())},
    }
