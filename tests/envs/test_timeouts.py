"""Adaptive timeouts, without a clock."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocknroll.envs.reasoning.timeouts import AdaptiveTimeouts


def test_task_without_a_correct_answer_has_the_most_time() -> None:
    timeouts = AdaptiveTimeouts(2.0, 30.0, 1.5)
    timeouts.evaluated("t", 5.0, correct=False)
    assert timeouts.timeout_s("t") == 30.0


def test_timeout_follows_the_longest_correct_evaluation_of_its_task() -> None:
    timeouts = AdaptiveTimeouts(2.0, 30.0, 1.5)
    for took_s in (4.0, 6.0, 5.0):
        timeouts.evaluated("t", took_s, correct=True)
    assert timeouts.timeout_s("t") == 9.0
    assert timeouts.timeout_s("other") == 30.0


@pytest.mark.parametrize(("took_s", "timeout_s"), [(0.1, 2.0), (29.0, 30.0)])
def test_timeout_stays_between_its_bounds(took_s: float, timeout_s: float) -> None:
    timeouts = AdaptiveTimeouts(2.0, 30.0, 1.5)
    timeouts.evaluated("t", took_s, correct=True)
    assert timeouts.timeout_s("t") == timeout_s


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 100), st.booleans())))
def test_what_was_learnt_survives_json(evaluations: list[tuple[str, float, bool]]) -> None:
    timeouts, restored = AdaptiveTimeouts(), AdaptiveTimeouts()
    for task, took_s, correct in evaluations:
        timeouts.evaluated(task, took_s, correct)
    restored.load_state_dict(json.loads(json.dumps(timeouts.state_dict())))
    for task in "ab":
        assert restored.timeout_s(task) == timeouts.timeout_s(task)
        correct_s = [took_s for name, took_s, correct in evaluations if name == task and correct]
        expected = min(max(2.0, 1.5 * max(correct_s)), 30.0) if correct_s else 30.0
        assert timeouts.timeout_s(task) == expected


@pytest.mark.parametrize(("minimum_s", "maximum_s"), [(3.0, 2.0), (0.0, 2.0)])
def test_impossible_bounds_are_refused(minimum_s: float, maximum_s: float) -> None:
    with pytest.raises(ValueError, match="shortest timeout"):
        AdaptiveTimeouts(minimum_s, maximum_s)
