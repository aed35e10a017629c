"""A rollout batch made ready to learn from: advantages, weights, and the order of optimiser steps.

Pure and deterministic: the same batch, settings, seed and version give the same experience, so a
checkpoint in the middle of a batch needs only the groups and what forward passes had computed.
A trajectory whose every token has advantage 0 (all members of its group did equally well) has no
gradient unless there is a KL or entropy term; it counts in the normalisation but is never forwarded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rocknroll.trainer.batch_metrics import behaviour, rounds, staleness
from rocknroll.trainer.credit.rhythm import Signals
from rocknroll.trainer.critics_section import CriticsSection
from rocknroll.trainer.learner_section import LearnerSection
from rocknroll.trainer.objectives.advantages import advantages
from rocknroll.trainer.objectives.aggregate import base_weights, normaliser
from rocknroll.trainer.stream import Batch
from rocknroll.trainer.trajectory import Group, Outcome, Trajectory
from rocknroll.trainer.valuation import Valuation, critic_metrics, disagreement_masks, gae_advantages

if TYPE_CHECKING:
    from torch import Tensor

LEARNABLE = frozenset({Outcome.COMPLETED, Outcome.TRUNCATED})
"""Outcomes with a reward; the others say nothing about the policy."""

PerToken = NDArray[np.float32]


@dataclass(frozen=True)
class Minibatch:
    """Everything one optimiser step needs: the trajectories with a gradient and the weight of their tokens."""

    members: tuple[int, ...]
    """Indices into the experience."""
    base: NDArray[np.float64]
    """[members]: the weight of each action token before normalisation."""
    normaliser: int
    """What the step's sum is divided by, from all its trajectories; 0 when they have no action tokens."""

    @property
    def weights(self) -> NDArray[np.float64]:
        """[members]: the weight of each action token, normalised over the whole step."""
        return self.base / max(1, self.normaliser)


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
    """Log-probabilities under the weights at arrival, by member; filled where they are needed."""
    past: dict[int, PerToken] = field(default_factory=dict)
    """Log-probabilities of tokens that earlier versions sampled, each under its own version's weights, and 0 for the
    others; by member, filled where the engine's mismatch is corrected and a member has such tokens."""
    reference: dict[int, PerToken] = field(default_factory=dict)
    """Log-probabilities under the reference policy, by member; filled where there is a KL term."""
    gamma: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    """Factor on the advantage of each action token, by member; filled where credit is assigned."""
    signals: dict[int, Signals] = field(default_factory=dict)
    """What attention said of each action token, by member; filled where credit reads it."""
    valuation: Valuation | None = None
    """What the critics said of the trajectories, where there are critics."""
    explored: list[NDArray[np.bool_]] | None = None
    """Whose entropy is rewarded, per token (I_H); None: everyone's."""
    steps_done: int = 0
    streamed_loss: Tensor | None = None
    """Where gradients were accumulated while the batch came in: the sum of losses, not yet normalised."""

    @property
    def one_step(self) -> bool:
        """Whether the weights at arrival are those of every step: then π_prox is the step's own forward."""
        return len(self.minibatches) == 1

    def credited(self, member: int) -> NDArray[np.float64]:
        """The member's advantages as they are trained on."""
        return self.advantages[member] * self.gamma.get(member, 1.0)

    @property
    def with_gradient(self) -> list[int]:
        """Members that some step forwards."""
        return sorted({member for minibatch in self.minibatches for member in minibatch.members})


def prepare(
    batch: Batch,
    section: LearnerSection,
    *,
    version: int,
    seed: int,
    critics: CriticsSection | None = None,
    valuation: Valuation | None = None,
) -> Experience:
    """Advantages over the groups, then `epochs × minibatches` steps over shuffled groups.

    `valuation`: of the trajectories of `learnable(batch)`, by the critics that `critics` asks for.

    Raises:
        ValueError: a group lacks what the advantage estimator needs.
    """
    groups = learnable(batch)
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    judged: dict[str, float] = {}
    explored = None
    if valuation is None or critics is None:
        values = advantages(section.advantage, groups, section)
    else:
        if section.advantage == "gae":
            values = gae_advantages(trajectories, valuation, critics)
        else:
            values = advantages(section.advantage, groups, section)
        trained, explored = disagreement_masks(valuation, critics)
        values = [np.where(mask, own, 0.0) for own, mask in zip(values, trained, strict=True)]
        judged = critic_metrics(trajectories, valuation, trained, explored, critics)
    places = np.array([i for i, group in enumerate(groups) for _ in group.trajectories], dtype=np.int64)
    differing = {int(place) for place, value in zip(places, values, strict=True) if value.any()}
    regularised = section.kl_coef > 0 or section.entropy_coef > 0
    needed = np.array([regularised or bool(value.any()) for value in values], dtype=bool)
    counts = np.array([len(value) for value in values], dtype=np.int64)
    received = sum(len(group.trajectories) for group in batch.groups)
    composition = {
        "batch/groups": float(len(batch.groups)),
        "batch/trajectories": float(len(trajectories)),
        "batch/dropped_trajectories": float(received - len(trajectories)),
        "batch/tokens": float(sum(len(t.token_ids) for t in trajectories)),
        "batch/action_tokens": float(counts.sum()),
        "batch/flat_group_fraction": (len(groups) - len(differing)) / max(1, len(groups)),
        "batch/skipped_token_fraction": float(1 - counts[needed].sum() / max(1, counts.sum())),
    }
    return Experience(
        groups=batch.groups,
        version=version,
        trajectories=trajectories,
        advantages=values,
        minibatches=_minibatches(section, places, counts, needed & (counts > 0), seed=[seed, version]),
        metrics={
            **batch.metrics,
            **composition,
            **behaviour(trajectories),
            **rounds(batch.groups),
            **staleness(trajectories, version),
            **judged,
        },
        valuation=valuation,
        explored=explored,
    )


def learnable(batch: Batch) -> list[Group]:
    """The batch's groups without the members that say nothing about the policy."""
    return [
        Group(group.id, group.task_id, tuple(t for t in group.trajectories if t.outcome in LEARNABLE))
        for group in batch.groups
    ]


def _minibatches(
    section: LearnerSection,
    places: NDArray[np.int64],
    counts: NDArray[np.int64],
    needed: NDArray[np.bool_],
    *,
    seed: list[int],
) -> list[Minibatch]:
    """`places`, `counts` and `needed` [members]: each one's group, its action tokens, whether it has a gradient."""
    steps: list[Minibatch] = []
    groups = np.unique(places)
    for epoch in range(section.epochs):
        order = np.random.default_rng([*seed, epoch]).permutation(groups)
        for part in np.array_split(order, section.minibatches):
            indices = np.flatnonzero(np.isin(places, part))
            base = base_weights(section.aggregation, counts[indices], section.constant_length)
            kept = needed[indices]
            total = normaliser(section.aggregation, counts[indices])
            steps.append(Minibatch(tuple(int(i) for i in indices[kept]), base[kept], total))
    return steps
