"""How per-token losses become one number: a weight for every action token of an optimiser step.

`loss = Σ_t weight_t · loss_t` over the whole step, however it is cut into forward passes: weights
are made once from the action-token counts of *all* trajectories of the step, those without a
gradient included, so the reduction never becomes a mean of means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.float64]


def token_mean(counts: NDArray[np.int64], constant_length: int) -> Weights:
    """Every token counts the same: 1 / Σ_i n_i (DAPO, Yu et al. 2025, eq. 8)."""
    return np.full(counts.shape, 1.0 / counts.sum())


def sequence_mean(counts: NDArray[np.int64], constant_length: int) -> Weights:
    """Every trajectory counts the same: 1 / (S · n_i) (GRPO, Shao et al. 2024, eq. 3)."""
    return 1.0 / (len(counts) * counts)


def sequence_sum(counts: NDArray[np.int64], constant_length: int) -> Weights:
    """Sum over a trajectory over a constant: 1 / (S · constant_length) (Dr.GRPO, Liu et al. 2025)."""
    return np.full(counts.shape, 1.0 / (len(counts) * constant_length))


AGGREGATIONS: Mapping[str, Callable[[NDArray[np.int64], int], Weights]] = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "sequence_sum": sequence_sum,
}


def token_weights(mode: str, counts: NDArray[np.int64], constant_length: int = 1) -> Weights:
    """Weight of each action token of each trajectory, shape [S].

    `counts` [S] are the action tokens of every trajectory of the optimiser step. A trajectory
    without any has weight 0 and is not counted in S.
    """
    weights = np.zeros(counts.shape, dtype=np.float64)
    present = counts > 0
    if present.any():
        weights[present] = AGGREGATIONS[mode](counts[present], constant_length)
    return weights
