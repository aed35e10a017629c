"""How devices are divided between playing and learning, by what a run measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocknroll.trainer.split import Split, measured, suggest


def idle(engine: float, learner: float, environments: float = 0.9) -> dict[str, float]:
    return {"idle/engine": engine, "idle/learner": learner, "idle/environments": environments}


def test_devices_go_to_the_side_that_is_busy() -> None:
    assert suggest(idle(engine=0.0, learner=0.5), 4, 4, overlapped=True) == Split(3, 5, pytest.approx(1.25))
    assert suggest(idle(engine=0.75, learner=0.0), 4, 4, overlapped=True) == Split(6, 2, pytest.approx(1.5))


def test_a_balanced_run_is_left_as_it_is() -> None:
    assert suggest(idle(engine=0.1, learner=0.1), 2, 2, overlapped=True) == Split(2, 2, 1.0)


def test_sides_that_take_turns_are_divided_by_the_root_of_their_work() -> None:
    # Work 4 : 1 on equal devices, so 2 : 1 is best.
    assert suggest(idle(engine=0.2, learner=0.8), 3, 3, overlapped=False) == Split(2, 4, pytest.approx(10 / 9))


def test_busy_environments_are_helped_by_no_device() -> None:
    assert suggest(idle(engine=0.5, learner=0.5, environments=0.1), 1, 1, overlapped=True) is None


def test_the_first_half_of_a_run_and_replayed_batches_do_not_count() -> None:
    rows = [idle(1, 1), idle(1, 1), {"iteration": 3.0}, idle(0.2, 0.4), idle(0.4, 0.6)]
    assert measured(rows) == pytest.approx(idle(0.3, 0.5))
    assert measured([{"iteration": 1.0}]) == {}
    assert suggest({}, 1, 1, overlapped=True) is None


@given(st.floats(0, 0.99), st.floats(0, 0.99), st.integers(1, 20), st.integers(1, 20), st.booleans())
def test_no_division_is_better(engine: float, learner: float, n_l: int, n_e: int, overlapped: bool) -> None:
    found = suggest(idle(engine, learner, environments=1.0), n_l, n_e, overlapped=overlapped)
    assert found is not None and found.learner + found.engine == n_l + n_e
    assert min(found.learner, found.engine) >= 1
    work_e, work_l = (1 - engine) * n_e, (1 - learner) * n_l

    def lasts(n: int) -> float:
        parts = work_l / n, work_e / (n_l + n_e - n)
        return max(parts) if overlapped else sum(parts)

    assert lasts(found.learner) <= min(lasts(n) for n in range(1, n_l + n_e)) + 1e-12
    assert found.speedup >= 1 - 1e-12
