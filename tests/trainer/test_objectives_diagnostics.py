"""Figures of the ratios, against their definitions."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from rocknroll.trainer.objectives.diagnostics import (
    correction_metrics,
    iteration_metrics,
    mismatch_metrics,
    ratio_metrics,
)

RNG = np.random.default_rng(1)
LOGP, BEHAVIOUR, PROXIMAL = (-RNG.uniform(0.1, 3, 101) for _ in range(3))


def ratios(numerator: np.ndarray, denominator: np.ndarray) -> list[float]:  # type: ignore[type-arg]
    return [math.exp(a - b) for a, b in zip(numerator, denominator, strict=True)]


def k3(rho: list[float]) -> float:
    return statistics.fmean(x - math.log(x) - 1 for x in rho)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("r", ratios(LOGP, BEHAVIOUR)),
        ("u", ratios(LOGP, PROXIMAL)),
        ("w", ratios(PROXIMAL, BEHAVIOUR)),
    ],
)
def test_each_ratio_has_its_mean_quantiles_and_maximum(name: str, values: list[float]) -> None:
    metrics = ratio_metrics(LOGP, BEHAVIOUR, PROXIMAL)
    assert metrics[f"ratio/{name}_mean"] == pytest.approx(statistics.fmean(values))
    assert metrics[f"ratio/{name}_max"] == pytest.approx(max(values))
    ordered = sorted(values)
    for label, place in (("p50", 50), ("p95", 95), ("p99", 99)):
        assert metrics[f"ratio/{name}_{label}"] == pytest.approx(ordered[place])


def test_sample_size_and_divergences_equal_their_definitions() -> None:
    metrics = ratio_metrics(LOGP, BEHAVIOUR, PROXIMAL)
    r = ratios(LOGP, BEHAVIOUR)
    assert metrics["ratio/ess"] == pytest.approx(sum(r) ** 2 / (len(r) * sum(x * x for x in r)))
    assert metrics["ratio/kl_behaviour"] == pytest.approx(k3(r))
    assert metrics["ratio/kl_proximal"] == pytest.approx(k3(ratios(LOGP, PROXIMAL)))


def test_on_policy_data_has_full_sample_size_and_no_divergence() -> None:
    metrics = ratio_metrics(LOGP, LOGP, LOGP)
    assert metrics["ratio/ess"] == metrics["ratio/w_max"] == metrics["ratio/u_p50"] == pytest.approx(1)
    assert metrics["ratio/kl_behaviour"] == metrics["ratio/kl_proximal"] == 0


def test_without_the_proximal_policy_what_needs_it_is_left_out() -> None:
    metrics = ratio_metrics(LOGP, BEHAVIOUR, None)
    assert not any(name.startswith(("ratio/u_", "ratio/w_", "ratio/kl_proximal")) for name in metrics)
    assert metrics == {
        name: value for name, value in ratio_metrics(LOGP, BEHAVIOUR, PROXIMAL).items() if name in metrics
    }


def test_extreme_ratios_stay_finite() -> None:
    metrics = ratio_metrics(np.array([1e3, -1e3]), np.zeros(2), np.zeros(2))
    assert metrics["ratio/r_max"] == pytest.approx(math.exp(20))
    assert metrics["ratio/kl_behaviour"] == pytest.approx((math.exp(20) - 20 - 1 + math.exp(-20) + 20 - 1) / 2)


def test_mismatch_compares_trainer_with_engine() -> None:
    metrics = mismatch_metrics(LOGP, BEHAVIOUR)
    m = ratios(LOGP, BEHAVIOUR)
    assert (metrics["mismatch/m_mean"], metrics["mismatch/m_max"]) == (pytest.approx(sum(m) / 101), max(m))
    assert metrics["mismatch/kl"] == pytest.approx(k3(m))


def test_a_correction_is_alive_where_it_changes_more_than_a_thousandth() -> None:
    shares = correction_metrics(
        staleness_weight=np.array([1.0, 1.0011, 1.0009, 0.5]),
        mismatch_weight=np.array([1.0, 1.0, 0.9989, 0.9991]),
        silenced=np.array([0.0, 1.0, 0.0, 0.0]),
        w=np.array([0.99, 1.0011, 0.9995, 3.0]),
    )
    assert shares == {
        "correction/staleness_alive": 0.5,
        "correction/staleness_needed": 0.75,
        "correction/clip_alive": 0.25,
        "correction/mismatch_alive": 0.25,
    }


def test_an_iteration_compares_what_it_noted_down() -> None:
    known = np.arange(101) % 2
    noted = {"logp": LOGP, "behaviour": BEHAVIOUR, "engine": BEHAVIOUR, "proximal": PROXIMAL, "trainer": PROXIMAL}
    acted = {"staleness_weight": np.ones(101), "mismatch_weight": np.ones(101), "silenced": np.zeros(101)}
    metrics = iteration_metrics({**noted, **acted, "trainer_known": known})
    expected = ratio_metrics(LOGP, BEHAVIOUR, PROXIMAL) | mismatch_metrics(PROXIMAL[known > 0], BEHAVIOUR[known > 0])
    assert expected.items() <= metrics.items()
    assert metrics["correction/staleness_needed"] > metrics["correction/staleness_alive"] == 0


def test_no_tokens_give_no_figures() -> None:
    none = np.zeros(0)
    assert ratio_metrics(none, none, none) == mismatch_metrics(none, none) == {}
    assert correction_metrics(none, none, none, none) == {}
