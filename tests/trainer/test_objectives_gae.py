"""GAE against the definition as a double sum over action tokens; what lies between them is never read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import played
import pytest

from rocknroll.trainer.objectives.gae import gae
from rocknroll.trainer.trajectory import Outcome, Trajectory

LAST = 0.8


def values(trajectory: Trajectory, seed: int = 0) -> np.ndarray[Any, Any]:
    """A critic's values at action tokens, NaN at all others."""
    drawn = np.random.default_rng(seed).normal(size=len(trajectory.token_ids))
    return np.where(trajectory.action_mask, drawn, math.nan)


def slow(trajectory: Trajectory, critic: np.ndarray[Any, Any], gamma: float, lam: float) -> list[float]:
    """`A_t = Σ_k (γλ)^k δ_{t+k}`, `δ_t = r_t + γ V_{t+1} − V_t`, over action tokens numbered 0, 1, …"""
    places = [i for i, action in enumerate(trajectory.action_mask) if action]
    v = [float(critic[i]) for i in places] + [LAST if trajectory.outcome is Outcome.TRUNCATED else 0.0]
    r = [sum(turn.reward for turn in trajectory.turns if turn.end - 1 == i) for i in places]
    delta = [r[t] + gamma * v[t + 1] - v[t] for t in range(len(places))]
    return [sum((gamma * lam) ** k * delta[t + k] for k in range(len(places) - t)) for t in range(len(places))]


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.TRUNCATED])
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.95), (0.99, 0.0), (0.0, 0.5)])
@pytest.mark.parametrize("seed", range(3))
def test_advantages_equal_the_double_sum(outcome: Outcome, gamma: float, lam: float, seed: int) -> None:
    trajectory = played.trajectory(np.random.default_rng(seed), turns=4, outcome=outcome)
    critic = values(trajectory, seed)
    advantages, returns = gae(trajectory, critic, LAST, gamma=gamma, lam=lam)
    assert advantages == pytest.approx(np.array(slow(trajectory, critic, gamma, lam)), rel=1e-12, abs=1e-12)
    assert returns == pytest.approx(advantages + critic[trajectory.action_mask])


def test_without_discount_the_returns_are_the_rewards_to_come() -> None:
    trajectory = played.trajectory(np.random.default_rng(0), rewards=[1.0, 2.0, 4.0])
    _, returns = gae(trajectory, values(trajectory), LAST, gamma=1.0, lam=1.0)
    to_come = [[left] * (turn.end - turn.start) for turn, left in zip(trajectory.turns, (7.0, 6.0, 4.0), strict=True)]
    assert returns == pytest.approx(np.concatenate(to_come))


def test_a_truncated_episode_goes_on_being_worth_what_the_critic_says() -> None:
    cut = played.trajectory(np.random.default_rng(0), turns=1, rewards=[0.0], outcome=Outcome.TRUNCATED)
    done = played.trajectory(np.random.default_rng(0), turns=1, rewards=[0.0], outcome=Outcome.COMPLETED)
    (*_, of_cut), (*_, of_done) = (gae(t, values(t), LAST, gamma=0.5, lam=0.9)[1] for t in (cut, done))
    assert (of_cut, of_done) == (pytest.approx(0.5 * LAST), pytest.approx(0.0))


def test_an_episode_without_actions_has_no_advantages() -> None:
    silent = played.trajectory(np.random.default_rng(0), turns=0)
    advantages, returns = gae(silent, values(silent), LAST, gamma=1.0, lam=1.0)
    assert len(advantages) == len(returns) == 0


def test_values_of_another_length_are_refused() -> None:
    trajectory = played.trajectory(np.random.default_rng(0), "odd")
    with pytest.raises(ValueError, match="trajectory odd: values have shape"):
        gae(trajectory, np.zeros(3), LAST, gamma=1.0, lam=1.0)
