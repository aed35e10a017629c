"""What a batch of trajectories says of the policy that played it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from rocknroll.trainer.trajectory import Group, Outcome, Trajectory


def behaviour(played: Sequence[Trajectory]) -> dict[str, float]:
    """Success, return and length of the episodes, success by kind of task, and the same by domain where there are
    several."""
    if not played:
        return {}
    turns = [turn for t in played for turn in t.turns]
    kinds = sorted({t.task_kind for t in played})
    return {
        "batch/success": _success(played),
        "batch/reward": _reward(played),
        "batch/turns": _turns(played),
        "batch/truncated_fraction": float(np.mean([t.outcome is Outcome.TRUNCATED for t in played])),
        "batch/invalid_action_fraction": float(np.mean([not turn.valid for turn in turns])) if turns else 0.0,
        **{f"success/{kind}": _success([t for t in played if t.task_kind == kind]) for kind in kinds},
        **_measured(played),
        **_by_domain(played),
    }


def rounds(groups: Sequence[Group]) -> dict[str, float]:
    """Under tail batching: whether the batch is of a long round, and length and return by kind of round.

    Short rounds keep what finishes first; these figures say how far their batches are from those of long ones.
    `…_tokens`: sampled tokens of an episode.
    """
    figures: dict[str, float] = {}
    kinds = {group.round_kind for group in groups if group.round_kind}
    for kind in sorted(kinds):
        played = [t for group in groups if group.round_kind == kind for t in group.trajectories]
        figures |= {
            f"round/{kind}_turns": _turns(played),
            f"round/{kind}_reward": _reward(played),
            f"round/{kind}_tokens": float(np.mean([t.action_mask.sum() for t in played])),
        }
    return {"round/long": float("long" in kinds), **figures} if kinds else {}


def staleness(played: Sequence[Trajectory], version: int) -> dict[str, float]:
    """Consuming version − oldest token's version: mean, maximum and a histogram of shares."""
    ages = Counter(version - t.oldest_version for t in played if t.action_mask.any())
    total = sum(ages.values())
    if not total:
        return {}
    shares = {f"staleness/share_{age}": count / total for age, count in sorted(ages.items())}
    mean = sum(age * count for age, count in ages.items()) / total
    return {"staleness/mean": mean, "staleness/max": float(max(ages)), **shares}


def _measured(played: Sequence[Trajectory]) -> dict[str, float]:
    """Means of what environments measured, over the episodes of which they did."""
    names = sorted({name for t in played for name in t.measured})
    return {f"env/{name}": float(np.mean([t.measured[name] for t in played if name in t.measured])) for name in names}


def _by_domain(played: Sequence[Trajectory]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for domain in sorted({t.domain for t in played if t.domain}):
        own = [t for t in played if t.domain == domain]
        figures |= {
            f"domain/{domain}/success": _success(own),
            f"domain/{domain}/reward": _reward(own),
            f"domain/{domain}/turns": _turns(own),
            f"domain/{domain}/share": len(own) / len(played),
        }
    return figures


def _success(played: Sequence[Trajectory]) -> float:
    return float(np.mean([t.success for t in played]))


def _reward(played: Sequence[Trajectory]) -> float:
    return float(np.mean([t.reward for t in played]))


def _turns(played: Sequence[Trajectory]) -> float:
    return float(np.mean([len(t.turns) for t in played]))
