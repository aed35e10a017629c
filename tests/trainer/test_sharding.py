"""How a step's trajectories are shared out among ranks."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import played
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rocknroll.trainer.packing import plan
from rocknroll.trainer.sharding import rank_passes, share
from rocknroll.trainer.trajectory import Trajectory

LENGTHS = st.lists(st.integers(0, 5000), max_size=60)
RANKS = st.integers(1, 9)


@given(LENGTHS, RANKS)
def test_every_trajectory_is_one_ranks(lengths: list[int], ranks: int) -> None:
    shares = share(lengths, ranks)
    assert len(shares) == ranks
    assert Counter(index for own in shares for index in own) == Counter(range(len(lengths)))
    assert all(list(own) == sorted(own) for own in shares)


@given(LENGTHS, RANKS)
def test_loads_differ_by_the_longest_trajectory_at_most(lengths: list[int], ranks: int) -> None:
    loads = [sum(lengths[index] for index in own) for own in share(lengths, ranks)]
    assert max(loads) - min(loads) <= max(lengths, default=0)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=7), st.integers(1, 3))
@example([4, 1, 1, 1, 1], 2)
def test_no_rank_has_more_than_four_thirds_of_the_best_possible(lengths: list[int], ranks: int) -> None:
    loads = [sum(lengths[index] for index in own) for own in share(lengths, ranks)]
    best = min(
        max(sum(length for length, rank in zip(lengths, owners, strict=True) if rank == own) for own in range(ranks))
        for owners in product(range(ranks), repeat=len(lengths))
    )
    assert 3 * max(loads) <= 4 * best


def batch(seed: int, count: int) -> list[Trajectory]:
    rng = np.random.default_rng(seed)
    made = [
        played.trajectory(rng, f"t{i}", turns=int(rng.integers(0, 5)), constrained=bool(rng.integers(2)))
        for i in range(count)
    ]
    return [t for t in made if t.action_mask.any()]


@given(st.integers(0, 1000), st.integers(0, 14), RANKS, st.integers(1, 90), st.booleans())
def test_all_ranks_make_equally_many_passes_and_together_forward_everything_once(
    seed: int, count: int, ranks: int, pass_tokens: int, last: bool
) -> None:
    trajectories = batch(seed, count)
    of_ranks = [list(rank_passes(trajectories, pass_tokens, rank, ranks, last=last)) for rank in range(ranks)]
    assert len({len(passes) for passes in of_ranks}) == 1
    counted = [index for passes in of_ranks for made in passes if made.counts for index in made.packed.members]
    assert sorted(counted) == list(range(len(trajectories)))
    for passes in of_ranks:
        assert [made.final for made in passes] == [False] * (len(passes) - 1) + [True] * bool(passes)
        assert all(len(made.packed.members) == 1 for made in passes if not made.counts)


@pytest.mark.parametrize("pass_tokens", [1, 30, 10_000])
def test_one_rank_makes_the_passes_of_the_plan(pass_tokens: int) -> None:
    trajectories = batch(3, 12)
    planned = list(plan(trajectories, pass_tokens))
    made = list(rank_passes(trajectories, pass_tokens, 0, 1))
    assert [one.packed.members for one in made] == [one.members for one in planned]
    assert all(one.counts for one in made)
    assert all(one.packed.token_ids.equal(other.token_ids) for one, other in zip(made, planned, strict=True))


def test_a_rank_without_work_repeats_the_shortest_trajectory() -> None:
    rng = np.random.default_rng(0)
    long, short = (played.trajectory(rng, name, turns=turns) for name, turns in (("long", 9), ("short", 1)))
    (made,) = rank_passes([long, short], 10_000, 2, 3)
    assert (made.packed.members, made.counts, made.final) == ((1,), False, True)
