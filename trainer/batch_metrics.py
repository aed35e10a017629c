"""What a batch of trajectories says of the policy that played it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from rocknroll.trainer.trajectory import Outcome, Trajectory


def behaviour(played: Sequence[Trajectory]) -> dict[str, float]:
    """Success, return and length of the episodes, and success by kind of task."""
    if not played:
        return {}
    turns = [turn for t in played for turn in t.turns]
    kinds = sorted({t.task_kind for t in played})
    return {
        "batch/success": float(np.mean([t.success for t in played])),
        "batch/reward": float(np.mean([t.reward for t in played])),
        "batch/turns": float(np.mean([len(t.turns) for t in played])),
        "batch/truncated_fraction": float(np.mean([t.outcome is Outcome.TRUNCATED for t in played])),
        "batch/invalid_action_fraction": float(np.mean([not turn.valid for turn in turns])) if turns else 0.0,
        **{f"success/{kind}": float(np.mean([t.success for t in played if t.task_kind == kind])) for kind in kinds},
    }


def staleness(played: Sequence[Trajectory], version: int) -> dict[str, float]:
    """Consuming version − oldest token's version: mean, maximum and a histogram of shares."""
    ages = Counter(version - t.oldest_version for t in played if t.action_mask.any())
    total = sum(ages.values())
    if not total:
        return {}
    shares = {f"staleness/share_{age}": count / total for age, count in sorted(ages.items())}
    mean = sum(age * count for age, count in ages.items()) / total
    return {"staleness/mean": mean, "staleness/max": float(max(ages)), **shares}
