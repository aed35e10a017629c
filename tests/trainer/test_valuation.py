"""What follows from values: returns, advantages, masks and figures, against loops over tokens."""

from __future__ import annotations

import numpy as np
import played
import pytest
from numpy.typing import NDArray

from rocknroll.trainer.critics_section import CriticsSection
from rocknroll.trainer.trajectory import Outcome, Trajectory
from rocknroll.trainer.valuation import Valuation, critic_metrics, disagreement_masks, gae_advantages, returns_of

Array = NDArray[np.float64]
SECTION = CriticsSection(kind="asyppo", gamma=0.9, lam=0.8, whiten=False)


def episodes() -> list[Trajectory]:
    rng = np.random.default_rng(0)
    outcomes = [Outcome.COMPLETED, Outcome.TRUNCATED, Outcome.COMPLETED, Outcome.TRUNCATED]
    return [played.trajectory(rng, f"t{i}", turns=i + 1, outcome=outcome) for i, outcome in enumerate(outcomes)]


def valuation(of: list[Trajectory]) -> Valuation:
    rng = np.random.default_rng(1)
    counts = [int(t.action_mask.sum()) for t in of]
    values, sigmas = [rng.normal(size=n) for n in counts], [rng.uniform(size=n) for n in counts]
    return Valuation(values, sigmas, rng.normal(size=len(of)).tolist())


def rewards_of(trajectory: Trajectory) -> list[float]:
    """Reward of each action token."""
    ends = {turn.end - 1: turn.reward for turn in trajectory.turns}
    return [ends.get(int(position), 0.0) for position in np.flatnonzero(trajectory.action_mask)]


def slow_returns(trajectory: Trajectory, last: float, gamma: float) -> list[float]:
    rewards = rewards_of(trajectory)
    behind = last if trajectory.outcome is Outcome.TRUNCATED else 0.0
    return [
        sum(gamma ** (k - t) * rewards[k] for k in range(t, len(rewards))) + gamma ** (len(rewards) - t) * behind
        for t in range(len(rewards))
    ]


@pytest.mark.parametrize("bootstrap", [False, True])
def test_returns_are_discounted_sums(bootstrap: bool) -> None:
    for trajectory in episodes():
        found = returns_of(trajectory, 0.7, SECTION.model_copy(update={"bootstrap": bootstrap}))
        np.testing.assert_allclose(found, slow_returns(trajectory, 0.7 if bootstrap else 0.0, 0.9), rtol=1e-12)


@pytest.mark.parametrize("bootstrap", [False, True])
def test_advantages_are_sums_of_discounted_residuals(bootstrap: bool) -> None:
    played_ = episodes()
    judged = valuation(played_)
    found = gae_advantages(played_, judged, SECTION.model_copy(update={"bootstrap": bootstrap}))
    for trajectory, values, last, own in zip(played_, judged.values, judged.last, found, strict=True):
        rewards, count = rewards_of(trajectory), len(values)
        behind = last if bootstrap and trajectory.outcome is Outcome.TRUNCATED else 0.0
        following = [*values[1:], behind]
        residual = [rewards[t] + 0.9 * following[t] - values[t] for t in range(count)]
        slow = [sum((0.9 * 0.8) ** (k - t) * residual[k] for k in range(t, count)) for t in range(count)]
        np.testing.assert_allclose(own, slow, rtol=1e-12)


def test_whitened_advantages_have_mean_zero_and_deviation_one_over_the_batch() -> None:
    played_ = episodes()
    section = SECTION.model_copy(update={"whiten": True})
    found = np.concatenate(gae_advantages(played_, valuation(played_), section))
    assert found.mean() == pytest.approx(0.0, abs=1e-12)
    assert found.std(ddof=1) == pytest.approx(1.0, rel=1e-5)
    assert gae_advantages([], Valuation([], [], []), section) == []


def test_one_critic_masks_nothing() -> None:
    played_ = episodes()
    judged = valuation(played_)
    for kind, masked in (("asyppo", True), ("symmetric", False)):
        trained, explored = disagreement_masks(judged, SECTION.model_copy(update={"kind": kind}))
        assert (not np.concatenate(trained).all()) is masked
        assert (not np.concatenate(explored).all()) is masked


def test_figures_tell_how_good_the_values_are() -> None:
    played_ = episodes()
    judged = valuation(played_)
    right = [returns_of(t, 0.0, SECTION) for t in played_]
    everything = [np.ones(len(own), dtype=bool) for own in right]
    some = [np.arange(len(own)) > 0 for own in right]
    biased = Valuation([own + 0.5 for own in right], judged.sigmas, judged.last)
    figures = critic_metrics(played_, biased, everything, some, SECTION)
    assert figures["critics/explained_variance"] == pytest.approx(1.0)
    for third in ("first", "middle", "last"):
        assert figures[f"critics/bias_{third}_third"] == pytest.approx(0.5)
    assert figures["critics/advantage_masked_share"] == 0.0
    assert figures["critics/entropy_masked_share"] == pytest.approx(4 / sum(map(len, right)))
    assert figures["critics/sigma_p50"] < figures["critics/sigma_p80"] < figures["critics/sigma_p95"]
    assert critic_metrics([], Valuation([], [], []), [], [], SECTION) == {}


def test_bias_is_told_by_turn() -> None:
    played_ = [played.trajectory(np.random.default_rng(0), f"t{turns}", turns=turns) for turns in (1, 5, 19)]
    right = [returns_of(t, 0.0, SECTION) for t in played_]
    off: dict[int, list[float]] = {}
    values = []
    for number, (trajectory, own) in enumerate(zip(played_, right, strict=True)):
        errors = []
        for turn_number, turn in enumerate(trajectory.turns, start=1):
            for position in range(turn.start, turn.end):
                if trajectory.action_mask[position]:
                    errors.append(turn_number + number / 10)
                    off.setdefault(turn_number, []).append(errors[-1])
        values.append(own + errors)
    sigmas = [np.ones(len(own)) for own in right]
    everything = [np.ones(len(own), dtype=bool) for own in right]
    judged = Valuation(values, sigmas, [0.0] * 3)
    figures = critic_metrics(played_, judged, everything, everything, SECTION)
    bins = {"turn_1": [1], "turn_2": [2], "turns_3_to_4": [3, 4], "turns_5_to_8": range(5, 9)}
    bins |= {"turns_9_to_16": range(9, 17), "turns_17_on": range(17, 20)}
    for name, turns in bins.items():
        assert figures[f"critics/bias_{name}"] == pytest.approx(np.mean([e for t in turns for e in off[t]])), name
    one_turn = critic_metrics(
        played_[:1], Valuation(values[:1], sigmas[:1], [0.0]), everything[:1], everything[:1], SECTION
    )
    assert "critics/bias_turn_1" in one_turn
    assert "critics/bias_turn_2" not in one_turn
