"""Token weights against plain loops over ragged trajectories."""

from __future__ import annotations

import numpy as np
import pytest

from rocknroll.trainer.objectives.aggregate import AGGREGATIONS, base_weights, normaliser, token_weights

LOSSES = [[1.0, 2.0, 3.0], [], [10.0], [4.0, 6.0]]
COUNTS = np.array([len(row) for row in LOSSES])


def reduced(mode: str, constant_length: int = 1) -> float:
    weights = token_weights(mode, COUNTS, constant_length)
    return sum(float(weight) * sum(row) for weight, row in zip(weights, LOSSES, strict=True))


def test_token_mean_is_the_mean_over_all_tokens() -> None:
    tokens = [loss for row in LOSSES for loss in row]
    assert reduced("token_mean") == pytest.approx(sum(tokens) / len(tokens))


def test_sequence_mean_is_the_mean_of_the_means_of_trajectories_with_tokens() -> None:
    means = [sum(row) / len(row) for row in LOSSES if row]
    assert reduced("sequence_mean") == pytest.approx(sum(means) / len(means))


def test_sequence_sum_divides_by_the_constant_whatever_the_length() -> None:
    sums = [sum(row) / 16 for row in LOSSES if row]
    assert reduced("sequence_sum", 16) == pytest.approx(sum(sums) / len(sums))


@pytest.mark.parametrize("mode", sorted(AGGREGATIONS))
def test_parts_of_a_step_sum_to_the_whole_once_the_normaliser_is_known(mode: str) -> None:
    parts = [COUNTS[:2], COUNTS[2:]]
    base = np.concatenate([base_weights(mode, part, 16) for part in parts])
    assert base / normaliser(mode, COUNTS) == pytest.approx(token_weights(mode, COUNTS, 16), rel=1e-15)


@pytest.mark.parametrize("mode", sorted(AGGREGATIONS))
@pytest.mark.parametrize("counts", [[], [0], [0, 0]])
def test_a_step_without_tokens_weighs_nothing(mode: str, counts: list[int]) -> None:
    assert not token_weights(mode, np.array(counts, dtype=np.int64), 16).any()
