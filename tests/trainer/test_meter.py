"""What the meter says of an interval, with a clock that the test turns."""

from __future__ import annotations

import numpy as np
import played
import pytest

from rocknroll.trainer.rollout import meter
from rocknroll.trainer.rollout.meter import Meter
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


def batch(size: int, environment_s: float = 0.0) -> tuple[Group, ...]:
    rng = np.random.default_rng(0)
    members = [played.trajectory(rng, f"t{i}") for i in range(size)]
    for member in members:
        member.timings_s["environment"] = environment_s
    return (Group("g", "task", tuple(members)),)


def test_figures_are_those_of_the_interval_and_not_of_the_whole_run(clock: Clock) -> None:
    subject = Meter(slots=4)
    clock.now += 10
    first = subject.read(batch(2, environment_s=4.0), {"busy_s": 4.0, "tokens_generated": 50.0}, 30.0, 2.0)
    assert first["idle/engine"] == pytest.approx(0.6)
    assert first["idle/slots"] == pytest.approx(0.25)
    assert first["idle/environments"] == pytest.approx(0.8)
    assert first["idle/learner"] == pytest.approx(0.2)
    assert first["rollout/tokens_per_s"] == pytest.approx(5.0)
    assert first["rollout/episodes_per_min"] == pytest.approx(12.0)
    clock.now += 5
    second = subject.read(batch(1), {"busy_s": 9.0, "tokens_generated": 60.0}, 30.0, 0.0)
    assert second["idle/engine"] == pytest.approx(0.0)
    assert second["idle/slots"] == pytest.approx(1.0)
    assert second["rollout/tokens_per_s"] == pytest.approx(2.0)
