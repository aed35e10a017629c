"""`metrics.jsonl`, and how a batch is cut into steps."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import played
import pytest

from rocknroll.trainer.experience import prepare
from rocknroll.trainer.learner_section import LearnerSection
from rocknroll.trainer.metrics_log import MetricsLog
from rocknroll.trainer.stream import Batch
from rocknroll.trainer.trajectory import Group


def test_figures_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append({"iteration": 1, "good": 0.5, "bad": float("nan"), "worse": float("inf")})
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"iteration": 1, "good": 0.5}


def test_a_resumed_run_drops_later_rows_and_an_unfinished_one(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for iteration in (1, 2, 3):
        log.append({"iteration": iteration})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 4, "lo')
    log.keep_until(2)
    log.append({"iteration": 3})
    rows = [json.loads(line)["iteration"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows == [1, 2, 3]


def test_minibatches_hold_every_trajectory_once_an_epoch_and_depend_on_the_seed() -> None:
    section = LearnerSection(epochs=2, minibatches=3, entropy_coef=0.1)
    batch = Batch(played.groups(0))
    steps = prepare(batch, section, version=1, seed=2).minibatches
    epochs = [[m for step in steps[i : i + 3] for m in step.members] for i in (0, 3)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(12))
    assert epochs[0] != epochs[1]
    assert steps[0].members == prepare(batch, section, version=1, seed=2).minibatches[0].members
    assert steps[0].members != prepare(batch, section, version=2, seed=2).minibatches[0].members


def test_a_group_is_never_split_between_minibatches() -> None:
    section = LearnerSection(epochs=2, minibatches=3, entropy_coef=0.1)
    experience = prepare(Batch(played.groups(0, 6)), section, version=1, seed=2)
    assert len(experience.minibatches) == 6
    for step in experience.minibatches:
        groups = [experience.trajectories[m].group_id for m in step.members]
        assert sorted(groups.count(group) for group in set(groups)) == [4, 4]


def test_weights_of_a_step_count_tokens_that_are_not_forwarded() -> None:
    rng = np.random.default_rng(0)
    flat = tuple(played.trajectory(rng, f"f{i}", rewards=[0.0, 0.0, 1.0]) for i in range(3))
    batch = Batch((Group("flat", "task", flat), *played.groups(1, 1)))
    experience = prepare(batch, LearnerSection(), version=0, seed=0)
    (step,) = experience.minibatches
    tokens = sum(len(values) for values in experience.advantages)
    assert step.members == (3, 4, 5, 6)
    assert step.weights == pytest.approx(1 / tokens)
    assert experience.metrics["batch/flat_group_fraction"] == 0.5
