"""A rollout batch made ready to learn from: advantages, weights, and the order of optimiser steps.

Pure and deterministic: the same batch, settings, seed and version give the same experience, so a
checkpoint in the middle of a batch needs only the groups and what forward passes had computed.
A trajectory whose every token has advantage 0 (all members of its group did equally well) has no
gradient unless there is a KL or entropy term; it counts in the normalisation but is never forwarded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rocknroll.trainer.batch_metrics import behaviour, rounds, staleness
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
    received = sum(len(group.trajectories) for group in batch.groups)
    composition = {
        "batch/groups": float(len(batch.groups)),
        "batch/trajectories": float(len(trajectories)),
        "batch/dropped_trajectories": float(received - len(trajectories)),
        "batch/tokens": float(sum(len(t.token_ids) for t in trajectories)),
        "batch/action_tokens": float(counts.sum()),
        "batch/flat_group_fraction": flat_groups / max(1, len(batch.groups)),
        "batch/skipped_token_fraction": float(1 - counts[needed].sum() / max(1, counts.sum())),
    }
    return Experience(
        groups=batch.groups,
        version=version,
        trajectories=trajectories,
        advantages=advantages,
        minibatches=_minibatches(section, counts, needed & (counts > 0), version=version, seed=seed),
        metrics={
            **batch.metrics,
            **composition,
            **behaviour(trajectories),
            **rounds(batch.groups),
            **staleness(trajectories, version),
        },
    )


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
