"""How per-token losses become one number: a weight for every action token of an optimiser step.

`loss = Σ_t base_t · loss_t / normaliser`: a trajectory's base weight follows from its own length,
the normaliser from the lengths of *all* trajectories of the step, those without a gradient
included. So however a step is cut into forward passes, and even before its last trajectory is
there, sums are right, and the reduction never becomes a mean of means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Weights = NDArray[np.float64]


@dataclass(frozen=True)
class Aggregation:
    """Both get the action-token counts [S] of trajectories that have any."""

    base: Callable[[Counts, int], Weights]
    """Weight of each action token before normalisation, [S]; gets `constant_length`, too."""
    normaliser: Callable[[Counts], int]
    """What the sum over the step is divided by."""


AGGREGATIONS: Mapping[str, Aggregation] = {
    # Every token counts the same: 1 / Σ_i n_i (DAPO, Yu et al. 2025, eq. 8).
    "token_mean": Aggregation(lambda counts, _: np.ones(counts.shape), lambda counts: int(counts.sum())),
    # Every trajectory counts the same: 1 / (S · n_i) (GRPO, Shao et al. 2024, eq. 3).
    "sequence_mean": Aggregation(lambda counts, _: 1.0 / counts, len),
    # Sum over a trajectory over a constant: 1 / (S · constant_length) (Dr.GRPO, Liu et al. 2025).
    "sequence_sum": Aggregation(lambda counts, length: np.full(counts.shape, 1.0 / length), len),
}


def base_weights(mode: str, counts: Counts, constant_length: int) -> Weights:
    """Weight of each action token of each trajectory before normalisation, shape [S]; 0 where there is none."""
    weights = np.zeros(counts.shape, dtype=np.float64)
    present = counts > 0
    weights[present] = AGGREGATIONS[mode].base(counts[present], constant_length)
    return weights


def normaliser(mode: str, counts: Counts) -> int:
    """What the sum of a step is divided by; trajectories without action tokens do not count. 0 for none."""
    return AGGREGATIONS[mode].normaliser(counts[counts > 0])


def token_weights(mode: str, counts: Counts, constant_length: int) -> Weights:
    """Weight of each action token of each trajectory, shape [S], from the counts of the whole optimiser step."""
    total = normaliser(mode, counts)
    base = base_weights(mode, counts, constant_length)
    return base / total if total else base
