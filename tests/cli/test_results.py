"""Results count what was played and know how sure they are."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocknroll.trainer.intervals import wilson
from rocknroll.trainer.results import EvalResult, KindResult


@pytest.mark.parametrize(
    ("successes", "episodes", "low", "high"),
    [
        # scipy.stats.binomtest(x, n).proportion_ci(method="wilson")
        (3, 4, 0.3006418, 0.9544127),
        (113, 192, 0.5178627, 0.6557471),
        (0, 10, 0.0, 0.2775328),
        (10, 10, 0.7224672, 1.0),
    ],
)
def test_wilson_agrees_with_reference_values(successes: int, episodes: int, low: float, high: float) -> None:
    assert wilson(successes, episodes) == pytest.approx((low, high), abs=1e-6)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_holds_the_rate_and_stays_a_probability(counts: tuple[int, int]) -> None:
    low, high = wilson(*counts)
    assert 0.0 <= low <= counts[0] / counts[1] <= high <= 1.0


def test_nothing_played_says_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


def test_more_successes_than_episodes_is_refused() -> None:
    with pytest.raises(ValueError, match="5 successes of 4"):
        wilson(5, 4)


def test_outcomes_are_counted_by_kind() -> None:
    result = EvalResult.of("unseen", [("heat", True), ("cool", False), ("heat", False)])
    assert (result.episodes, result.successes) == (3, 1)
    assert result.by_kind == {"cool": KindResult(1, 0), "heat": KindResult(2, 1)}


def test_a_result_survives_json() -> None:
    result = EvalResult.of("seen", [("heat", True), ("cool", False)])
    assert EvalResult.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_a_result_says_which_domain_it_is_of_and_one_of_the_only_environment_does_not() -> None:
    hard = EvalResult.of("unseen", [("heat", True)], "hard")
    assert (hard.where, hard.to_json()["domain"]) == ("hard unseen", "hard")
    assert EvalResult.from_json(json.loads(json.dumps(hard.to_json()))) == hard
    alone = EvalResult.of("unseen", [("heat", True)])
    assert alone.where == "unseen" and "domain" not in alone.to_json()


def test_pooled_results_count_every_episode_once() -> None:
    easy = EvalResult.of("unseen", [("heat", True), ("cool", False)], "easy")
    hard = EvalResult.of("unseen", [("heat", False), ("heat", True), ("slice", True)], "hard")
    pooled = EvalResult.pooled([easy, hard])
    assert (pooled.split, pooled.episodes, pooled.successes, pooled.domain) == ("unseen", 5, 3, "")
    assert pooled.by_kind == {"cool": KindResult(1, 0), "heat": KindResult(3, 2), "slice": KindResult(1, 1)}
    assert EvalResult.pooled([easy]).to_json() == {k: v for k, v in easy.to_json().items() if k != "domain"}
