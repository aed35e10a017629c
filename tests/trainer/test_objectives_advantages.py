"""Advantages against slow references; what no group can tell apart is exactly zero."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from types import SimpleNamespace
from typing import get_args

import numpy as np
import played
import pytest

from rocknroll.trainer.learner_section import LearnerSection
from rocknroll.trainer.objectives.advantages import (
    ADVANTAGES,
    BATCH_ADVANTAGES,
    STD_EPSILON,
    advantages,
    discounted_returns,
)
from rocknroll.trainer.objectives.catalogue import WHOLE_BATCH_ADVANTAGES
from rocknroll.trainer.trajectory import Group, Trajectory

CFG = SimpleNamespace(gigpo_omega=0.7, gamma=0.9)
NAMES = sorted(ADVANTAGES)
ALL_NAMES = sorted(ADVANTAGES | BATCH_ADVANTAGES)


def test_grpo_standardises_returns_over_the_group() -> None:
    group = played.group(np.random.default_rng(0), size=5)
    rewards = [trajectory.reward for trajectory in group.trajectories]
    mean, std = statistics.fmean(rewards), statistics.stdev(rewards)
    for reward, values in zip(rewards, ADVANTAGES["grpo"](group, CFG), strict=True):
        assert values == pytest.approx((reward - mean) / (std + STD_EPSILON))


def test_rloo_compares_with_the_others() -> None:
    group = played.group(np.random.default_rng(1), size=5)
    rewards = [trajectory.reward for trajectory in group.trajectories]
    for i, values in enumerate(ADVANTAGES["rloo"](group, CFG)):
        others = rewards[:i] + rewards[i + 1 :]
        assert values == pytest.approx(rewards[i] - statistics.fmean(others))


def test_a_tiny_spread_is_not_blown_up_beyond_the_epsilon() -> None:
    """Rewards 2e-6 apart: the epsilon is of the size of the standard deviation."""
    members = tuple(played.trajectory(np.random.default_rng(0), turns=1, rewards=[r]) for r in (0.0, 2e-6))
    first, second = ADVANTAGES["grpo"](Group("g", "t", members), CFG)
    expected = 1e-6 / (math.sqrt(2) * 1e-6 + 1e-6)
    assert (first[0], second[0]) == (pytest.approx(-expected), pytest.approx(expected))


def test_dr_grpo_only_subtracts_the_mean() -> None:
    group = played.group(np.random.default_rng(0), size=5)
    rewards = [trajectory.reward for trajectory in group.trajectories]
    for reward, values in zip(rewards, ADVANTAGES["dr_grpo"](group, CFG), strict=True):
        assert values == pytest.approx(reward - statistics.fmean(rewards))


@pytest.mark.parametrize("baseline", [False, True])
def test_reinforce_pp_standardises_over_all_action_tokens_of_the_batch(baseline: bool) -> None:
    groups = played.groups(1, 3)
    members = [t for group in groups for t in group.trajectories]
    means = [statistics.fmean(t.reward for t in group.trajectories) for group in groups for _ in group.trajectories]
    scores = [t.reward - (mean if baseline else 0) for t, mean in zip(members, means, strict=True)]
    tokens = [score for t, score in zip(members, scores, strict=True) for _ in range(int(t.action_mask.sum()))]
    name = "reinforce++_baseline" if baseline else "reinforce++"
    for score, values in zip(scores, advantages(name, groups, CFG), strict=True):
        assert values == pytest.approx((score - statistics.fmean(tokens)) / (statistics.stdev(tokens) + STD_EPSILON))


def test_two_members_are_enough_to_compare() -> None:
    members = tuple(played.trajectory(np.random.default_rng(0), turns=1, rewards=[r]) for r in (0.0, 1.0))
    group = Group("g", "t", members)
    for name, expected in (("grpo", 0.5 / (math.sqrt(0.5) + 1e-6)), ("rloo", 1.0), ("dr_grpo", 0.5)):
        first, second = ADVANTAGES[name](group, CFG)
        assert (first[0], second[0]) == (pytest.approx(-expected), pytest.approx(expected))


def test_the_recipe_knows_every_advantage_and_which_need_the_whole_batch() -> None:
    assert set(get_args(LearnerSection.model_fields["advantage"].annotation)) == {*ALL_NAMES, "gae"}
    assert BATCH_ADVANTAGES.keys() == WHOLE_BATCH_ADVANTAGES


def test_gigpo_equals_a_slow_reference() -> None:
    rng = np.random.default_rng(2)
    group = played.group(rng, size=6)
    returns = [[slow_return(t, k) for k in range(len(t.turns))] for t in group.trajectories]
    episode = ADVANTAGES["grpo"](group, CFG)
    for i, (trajectory, values) in enumerate(zip(group.trajectories, ADVANTAGES["gigpo"](group, CFG), strict=True)):
        expected: list[float] = []
        for k, turn in enumerate(trajectory.turns):
            seen = [
                returns[j][m]
                for j, other in enumerate(group.trajectories)
                for m, there in enumerate(other.turns)
                if there.state_hash == turn.state_hash
            ]
            spread = statistics.stdev(seen) if len(seen) > 1 else 0.0
            step = (returns[i][k] - statistics.fmean(seen)) / (spread + STD_EPSILON) if spread else 0.0
            expected += [step] * (turn.end - turn.start)
        assert values == pytest.approx(episode[i] + CFG.gigpo_omega * np.array(expected))


def slow_return(trajectory: Trajectory, turn: int) -> float:
    return sum(CFG.gamma ** (k - turn) * trajectory.turns[k].reward for k in range(turn, len(trajectory.turns)))


def test_discounted_returns_count_from_their_own_turn() -> None:
    trajectory = played.trajectory(np.random.default_rng(3), rewards=[1.0, 0.0, 2.0])
    assert discounted_returns(trajectory, 0.5).tolist() == [1.5, 1.0, 2.0]


def test_a_state_seen_once_adds_nothing() -> None:
    rng = np.random.default_rng(4)
    members = tuple(played.trajectory(rng, f"t{i}", states=[f"{i}{k}" for k in range(3)]) for i in range(3))
    group = Group("g", "task", members)
    for gigpo, grpo in zip(ADVANTAGES["gigpo"](group, CFG), ADVANTAGES["grpo"](group, CFG), strict=True):
        assert gigpo.tolist() == grpo.tolist()


def test_gigpo_without_states_is_refused() -> None:
    member = played.trajectory(np.random.default_rng(5), "nameless", states=["a", "", "b"])
    with pytest.raises(ValueError, match="turn 1 of trajectory nameless"):
        ADVANTAGES["gigpo"](Group("g", "task", (member, member)), CFG)


def test_staged_equals_a_slow_reference() -> None:
    group = played.group(np.random.default_rng(8), size=6)
    for trajectory, values in zip(group.trajectories, ADVANTAGES["staged"](group, CFG), strict=True):
        expected: list[float] = []
        for k, turn in enumerate(trajectory.turns):
            total = share = 0.0
            for other in group.trajectories:
                for m, there in enumerate(other.turns):
                    if there.progress == turn.progress:
                        part = (there.end - there.start) / sum(t.end - t.start for t in other.turns)
                        total += part * slow_return(other, m)
                        share += part
            expected += [slow_return(trajectory, k) - total / share] * (turn.end - turn.start)
        assert values == pytest.approx(np.array(expected))


def test_the_advantages_of_a_stage_sum_to_nothing_over_sequence_means() -> None:
    group = played.group(np.random.default_rng(9), size=8)
    sums: defaultdict[float, float] = defaultdict(float)
    for trajectory, values in zip(group.trajectories, ADVANTAGES["staged"](group, CFG), strict=True):
        stages = np.concatenate([[turn.progress] * (turn.end - turn.start) for turn in trajectory.turns])
        for stage, value in zip(stages, values, strict=True):
            sums[float(stage)] += value / len(values)
    assert len(sums) > 1
    assert list(sums.values()) == pytest.approx([0.0] * len(sums), abs=1e-12)


def test_staged_does_not_credit_a_turn_with_what_came_before() -> None:
    """Both find the thing, one after a detour: from there on they did equally well, discounted alike."""
    rng = np.random.default_rng(10)
    quick = played.trajectory(rng, "quick", turns=2, rewards=[0.5, 1.0], progress=[0.0, 0.5])
    slow = played.trajectory(rng, "slow", turns=3, rewards=[-1.0, 0.5, 1.0], progress=[0.0, 0.0, 0.5])
    for trajectory, values in zip(
        (quick, slow), ADVANTAGES["staged"](Group("g", "t", (quick, slow)), CFG), strict=True
    ):
        last = trajectory.turns[-1]
        assert not values[-(last.end - last.start) :].any()


@pytest.mark.parametrize("name", ALL_NAMES)
@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("reward", [0.0, 0.1, 1 / 3, -1e9])
def test_equal_returns_give_exactly_zero(name: str, size: int, reward: float) -> None:
    rng = np.random.default_rng(6)
    stages = [0.0, 1 / 3, 2 / 3]
    member = played.trajectory(rng, rewards=[0.0, 0.0, reward], states=["a", "b", "c"], progress=stages)
    for values in advantages(name, [Group("g", "task", (member,) * size)] * 2, CFG):
        assert not values.any()


@pytest.mark.parametrize("name", ALL_NAMES)
def test_empty_groups_and_batches_have_no_advantages(name: str) -> None:
    assert advantages(name, [Group("g", "task", ())], CFG) == []
    assert advantages(name, [], CFG) == []


@pytest.mark.parametrize("name", ALL_NAMES)
def test_there_is_one_advantage_per_action_token(name: str) -> None:
    silent = played.trajectory(np.random.default_rng(0), turns=0)
    groups = [played.group(np.random.default_rng(7)), Group("silent", "t", (silent, silent))]
    members = [trajectory for group in groups for trajectory in group.trajectories]
    for trajectory, values in zip(members, advantages(name, groups, CFG), strict=True):
        assert values.shape == (int(trajectory.action_mask.sum()),)
        assert values.dtype == np.float64
