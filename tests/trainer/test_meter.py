"""What the meter says of an interval, with a clock that the test turns."""

from __future__ import annotations

import numpy as np
import played
import pytest

from rocknroll.trainer.rollout import meter
from rocknroll.trainer.rollout.meter import Meter, Reading, bottleneck
from rocknroll.trainer.trajectory import Group


class Clock:
    now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(meter, "time", clock)
    return clock


def batch(size: int) -> tuple[Group, ...]:
    rng = np.random.default_rng(0)
    return (Group("g", "task", tuple(played.trajectory(rng, f"t{i}") for i in range(size))),)


def test_figures_are_those_of_the_interval_and_not_of_the_whole_run(clock: Clock) -> None:
    subject = Meter()
    clock.now += 10
    first = subject.read(batch(2), Reading(30.0, 40.0, {"busy_s": 4.0, "tokens_generated": 50.0}, 8.0), 2.0)
    assert first["idle/engine"] == pytest.approx(0.6)
    assert first["idle/slots"] == pytest.approx(0.25)
    assert first["idle/environments"] == pytest.approx(0.8)
    assert first["rollout/slots"] == pytest.approx(4.0)
    assert first["idle/learner"] == pytest.approx(0.2)
    assert first["rollout/tokens_per_s"] == pytest.approx(5.0)
    assert first["rollout/episodes_per_min"] == pytest.approx(12.0)
    clock.now += 5
    second = subject.read(batch(1), Reading(30.0, 60.0, {"busy_s": 9.0, "tokens_generated": 60.0}, 18.0), 0.0)
    assert second["idle/engine"] == pytest.approx(0.0)
    assert second["idle/slots"] == pytest.approx(1.0)
    assert second["idle/environments"] == pytest.approx(0.5)
    assert second["rollout/tokens_per_s"] == pytest.approx(2.0)


def test_faults_are_counted_by_cause_in_the_interval_they_happened_in(clock: Clock) -> None:
    subject = Meter()
    clock.now += 10
    first = subject.read(batch(1), Reading(0.0, 0.0, faults={"env_error": 3}), 0.0)
    second = subject.read(batch(1), Reading(0.0, 0.0, faults={"env_error": 3, "env_hung": 2}), 0.0)
    assert first["faults/env_error"] == 3 and "faults/env_hung" not in first
    assert (second["faults/env_error"], second["faults/env_hung"]) == (0, 2)


def test_the_side_that_is_busiest_is_what_the_others_wait_for() -> None:
    idle = {"idle/engine": 0.17, "idle/environments": 0.6, "idle/learner": 0.9}
    assert bottleneck(idle) == "engine"
    assert bottleneck(idle | {"idle/learner": 0.05}) == "learner"
    assert bottleneck({"batch/success": 1.0}) == ""
