"""The figures of a batch."""

from __future__ import annotations

import numpy as np
import played

from rocknroll.trainer.batch_metrics import behaviour, staleness
from rocknroll.trainer.experience import prepare
from rocknroll.trainer.recipe import LearnerSection
from rocknroll.trainer.stream import Batch
from rocknroll.trainer.trajectory import Group, Outcome


def test_what_failed_for_other_reasons_than_the_policy_says_nothing_of_it() -> None:
    rng = np.random.default_rng(0)
    members = (
        played.trajectory(rng, "a", rewards=[0.0, 0.0, 1.0], success=True, version=3, task_kind="put"),
        played.trajectory(rng, "b", rewards=[0.0, 0.0, -1.0], version=5, outcome=Outcome.TRUNCATED, task_kind="heat"),
        played.trajectory(rng, "c", outcome=Outcome.INFRA_ERROR),
    )
    metrics = prepare(Batch((Group("g", "task", members),), {"own": 9.0}), LearnerSection(), version=5, seed=0).metrics
    assert metrics["own"] == 9.0
    assert (metrics["batch/reward"], metrics["batch/success"], metrics["batch/truncated_fraction"]) == (0.0, 0.5, 0.5)
    assert (metrics["staleness/mean"], metrics["staleness/max"]) == (1.0, 2.0)
    assert (metrics["success/put"], metrics["success/heat"]) == (1.0, 0.0)
    assert (metrics["batch/trajectories"], metrics["batch/dropped_trajectories"]) == (2, 1)


def test_staleness_is_a_histogram_of_shares() -> None:
    rng = np.random.default_rng(0)
    members = [played.trajectory(rng, f"t{i}", version=version) for i, version in enumerate((3, 3, 2, 0))]
    assert staleness(members, version=3) == {
        "staleness/mean": 1.0,
        "staleness/max": 3.0,
        "staleness/share_0": 0.5,
        "staleness/share_1": 0.25,
        "staleness/share_3": 0.25,
    }


def test_nothing_played_gives_no_figures() -> None:
    assert staleness([], version=1) == {} == behaviour([])
