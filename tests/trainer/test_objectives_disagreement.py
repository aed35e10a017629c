"""Splits and masks of several critics against slow references, with ties and with critics that agree."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocknroll.trainer.objectives.disagreement import masks, split, spread

few = st.sampled_from([0.0, 0.25, 0.5, 3.0])
sigmas = st.lists(st.lists(few, max_size=7).map(np.array), max_size=6)


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, 5), st.integers(0, 7))
def test_every_member_goes_to_one_critic_and_every_group_evenly(sizes: list[int], critics: int, version: int) -> None:
    parts = split(sizes, critics, version)
    assert len(parts) == critics
    assert sorted(member for part in parts for member in part) == list(range(sum(sizes)))
    start = 0
    for size in sizes:
        shares = [sum(start <= member < start + size for member in part) for part in parts]
        assert max(shares) - min(shares) <= 1
        start += size


@given(st.integers(1, 9), st.integers(2, 4))
def test_what_a_group_leaves_over_goes_round(size: int, critics: int) -> None:
    """Over as many versions, and over as many groups, as there are critics, each gets the same."""
    by_version = Counter(c for v in range(critics) for c, part in enumerate(split([size], critics, v)) for _ in part)
    by_group = Counter(c for c, part in enumerate(split([size] * critics, critics, 0)) for _ in part)
    for counts in (by_version, by_group):
        assert set(counts.values()) == {size}


def test_a_lone_member_alternates_with_the_version() -> None:
    assert [split([1], 2, version) for version in range(3)] == [[[0], []], [[], [0]], [[0], []]]


@given(sigmas, st.sampled_from([0.0, 0.2, 0.5, 1.0]), st.sampled_from([0.0, 0.2, 0.3, 1.0]))
def test_masks_equal_a_slow_reference(per_member: list[np.ndarray], agreeing: float, disagreeing: float) -> None:
    trained, explored = masks(per_member, agreeing, disagreeing)
    tokens = [(float(value), member, place) for member, own in enumerate(per_member) for place, value in enumerate(own)]
    left = sorted(tokens)
    fewest = left[: math.floor(agreeing * len(left) + 1e-9)]
    most = left[len(left) - math.floor(disagreeing * len(left) + 1e-9) :]
    for member, own in enumerate(per_member):
        assert trained[member].tolist() == [(float(v), member, p) not in fewest for p, v in enumerate(own)]
        assert explored[member].tolist() == [(float(v), member, p) not in most for p, v in enumerate(own)]


@pytest.mark.parametrize("count", [5, 10, 31])
def test_critics_that_agree_everywhere_mask_their_share_and_not_everything(count: int) -> None:
    value = np.linspace(-1, 1, count)
    sigma = spread(np.stack([value, value, value]))
    assert not sigma.any()
    trained, explored = masks([sigma[:2], sigma[2:]], 0.2, 0.2)
    assert np.concatenate(trained).tolist() == [place >= count // 5 for place in range(count)]
    assert np.concatenate(explored).tolist() == [place < count - count // 5 for place in range(count)]


@given(st.integers(1, 4), st.integers(0, 6), st.integers(0, 5))
def test_spread_is_the_standard_deviation_over_critics(critics: int, count: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=(critics, count))
    slow = [math.sqrt(sum((v - sum(token) / critics) ** 2 for v in token) / critics) for token in values.T.tolist()]
    np.testing.assert_allclose(spread(values), slow, atol=1e-12)


def test_critics_that_agree_on_some_tokens_have_no_spread_there() -> None:
    values = np.array([[0.1, 0.1], [0.1, 0.3], [0.1, 0.2]])
    assert values[:, 0].std() > 0  # by rounding
    assert spread(values)[0] == 0 < spread(values)[1]


def test_empty_batches_have_empty_masks() -> None:
    assert masks([], 0.2, 0.2) == ([], [])
    assert [len(part) for side in masks([np.zeros(0)] * 2, 0.2, 0.2) for part in side] == [0, 0, 0, 0]
