"""Advantages against slow references; what no group can tell apart is exactly zero."""

from __future__ import annotations

import statistics
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import played
import pytest

from rocknroll.trainer.objectives.advantages import ADVANTAGES, STD_EPSILON, discounted_returns
from rocknroll.trainer.trajectory import Group, Trajectory

CFG = SimpleNamespace(gigpo_omega=0.7, gamma=0.9)
NAMES = sorted(ADVANTAGES)


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


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("reward", [0.0, 0.1, 1 / 3, -1e9])
def test_equal_returns_give_exactly_zero(name: str, size: int, reward: float) -> None:
    rng = np.random.default_rng(6)
    stages = [0.0, 1 / 3, 2 / 3]
    member = played.trajectory(rng, rewards=[0.0, 0.0, reward], states=["a", "b", "c"], progress=stages)
    for values in ADVANTAGES[name](Group("g", "task", (member,) * size), CFG):
        assert not values.any()


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_group_has_no_advantages(name: str) -> None:
    assert ADVANTAGES[name](Group("g", "task", ()), CFG) == ()


@pytest.mark.parametrize("name", NAMES)
def test_there_is_one_advantage_per_action_token(name: str) -> None:
    group = played.group(np.random.default_rng(7))
    for trajectory, values in zip(group.trajectories, ADVANTAGES[name](group, CFG), strict=True):
        assert values.shape == (int(trajectory.action_mask.sum()),)
        assert values.dtype == np.float64
