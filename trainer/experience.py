"""A rollout batch made ready to learn from: advantages, weights, and the order of optimiser steps.

Pure and deterministic: the same batch, settings, seed and version give the same experience, so a
checkpoint in the middle of a batch needs only the groups and what forward passes had computed.
A trajectory whose every token has advantage 0 (all members of its group did equally well) has no
gradient unless there is a KL or entropy term; it counts in the normalisation but is never forwarded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rocknroll.trainer.objectives.advantages import ADVANTAGES
from rocknroll.trainer.objectives.aggregate import token_weights
from rocknroll.trainer.recipe import LearnerSection
from rocknroll.trainer.stream import Batch
from rocknroll.trainer.trajectory import Group, Outcome, Trajectory

LEARNABLE = frozenset({Outcome.COMPLETED, Outcome.TRUNCATED})
"""Outcomes with a reward; the others say nothing about the policy."""

PerToken = NDArray[np.float32]


@dataclass(frozen=True)
class Minibatch:
    """Everything one optimiser step needs: the trajectories with a gradient and the weight of their tokens."""

    members: tuple[int, ...]
    """Indices into the experience."""
    weights: NDArray[np.float64]
    """[members]: the weight of each action token, normalised over the whole step."""


@dataclass
class Experience:
    """What one policy version learns from. Lists are parallel: one entry per trajectory, per-token arrays [n]."""

    groups: tuple[Group, ...]
    version: int
    """The policy version that is being trained."""
    trajectories: list[Trajectory]
    advantages: list[NDArray[np.float64]]
    minibatches: list[Minibatch]
    """In the order of the optimiser steps: every epoch's minibatches."""
    metrics: dict[str, float]
    proximal: dict[int, PerToken] = field(default_factory=dict)
    """Log-probabilities under the weights at arrival, by member; filled where an objective needs them."""
    reference: dict[int, PerToken] = field(default_factory=dict)
    """Log-probabilities under the reference policy, by member; filled where there is a KL term."""
    steps_done: int = 0

    @property
    def with_gradient(self) -> list[int]:
        """Members that some step forwards."""
        return sorted({member for minibatch in self.minibatches for member in minibatch.members})


def prepare(batch: Batch, section: LearnerSection, *, version: int, seed: int) -> Experience:
    """Advantages over the groups, then `epochs × minibatches` steps over shuffled trajectories.

    Raises:
        ValueError: a group lacks what the advantage estimator needs.
    """
    trajectories: list[Trajectory] = []
    advantages: list[NDArray[np.float64]] = []
    flat_groups = 0
    for group in batch.groups:
        members = tuple(t for t in group.trajectories if t.outcome in LEARNABLE)
        learnable = Group(id=group.id, task_id=group.task_id, trajectories=members)
        values = ADVANTAGES[section.advantage](learnable, section)
        flat_groups += all(not value.any() for value in values)
        trajectories += members
        advantages += values
    regularised = section.kl_coef > 0 or section.entropy_coef > 0
    needed = np.array([regularised or bool(value.any()) for value in advantages], dtype=bool)
    counts = np.array([len(value) for value in advantages], dtype=np.int64)
    experience = Experience(
        groups=batch.groups,
        version=version,
        trajectories=trajectories,
        advantages=advantages,
        minibatches=_minibatches(section, counts, needed & (counts > 0), version=version, seed=seed),
        metrics=dict(batch.metrics),
    )
    experience.metrics |= _rollout_metrics(experience, sum(len(group.trajectories) for group in batch.groups))
    experience.metrics["batch/flat_group_fraction"] = flat_groups / max(1, len(batch.groups))
    experience.metrics["batch/skipped_token_fraction"] = float(1 - counts[needed].sum() / max(1, counts.sum()))
    return experience


def _minibatches(
    section: LearnerSection, counts: NDArray[np.int64], needed: NDArray[np.bool_], *, version: int, seed: int
) -> list[Minibatch]:
    steps: list[Minibatch] = []
    for epoch in range(section.epochs):
        order = np.random.default_rng([seed, version, epoch]).permutation(len(counts))
        for part in np.array_split(order, section.minibatches):
            indices = np.sort(part)
            weights = token_weights(section.aggregation, counts[indices], section.constant_length)
            kept = needed[indices]
            steps.append(Minibatch(tuple(int(i) for i in indices[kept]), weights[kept]))
    return steps


def _rollout_metrics(experience: Experience, received: int) -> dict[str, float]:
    played = experience.trajectories
    metrics: dict[str, float] = {
        "batch/groups": float(len(experience.groups)),
        "batch/trajectories": float(len(played)),
        "batch/dropped_trajectories": float(received - len(played)),
        "batch/tokens": float(sum(len(t.token_ids) for t in played)),
        "batch/action_tokens": float(sum(len(a) for a in experience.advantages)),
    }
    if not played:
        return metrics
    staleness = [experience.version - t.oldest_version for t in played if t.action_mask.any()]
    turns = [turn for t in played for turn in t.turns]
    return metrics | {
        "batch/reward": float(np.mean([t.reward for t in played])),
        "batch/success": float(np.mean([t.success for t in played])),
        "batch/truncated_fraction": float(np.mean([t.outcome is Outcome.TRUNCATED for t in played])),
        "batch/turns": float(np.mean([len(t.turns) for t in played])),
        "batch/invalid_action_fraction": float(np.mean([not turn.valid for turn in turns])) if turns else 0.0,
        "batch/staleness_mean": float(np.mean(staleness)) if staleness else 0.0,
        "batch/staleness_max": float(np.max(staleness)) if staleness else 0.0,
        **_success_by_kind(played),
    }


def _success_by_kind(played: Sequence[Trajectory]) -> Mapping[str, float]:
    kinds = sorted({t.task_kind for t in played})
    return {f"success/{kind}": float(np.mean([t.success for t in played if t.task_kind == kind])) for kind in kinds}
