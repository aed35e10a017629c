"""The figures of a batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import played
import pytest

from rocknroll.trainer.batch_metrics import behaviour, rounds, staleness
from rocknroll.trainer.experience import prepare
from rocknroll.trainer.learner_section import LearnerSection
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
    assert staleness([], version=1) == {} == behaviour([]) == rounds([])


def test_every_domain_has_its_own_success_return_length_and_share() -> None:
    rng = np.random.default_rng(0)
    members = [
        replace(played.trajectory(rng, turns=1, rewards=[1.0], success=True), domain="easy"),
        replace(played.trajectory(rng, turns=2, rewards=[0.0, 0.5]), domain="easy"),
        replace(played.trajectory(rng, turns=3, rewards=[0.0] * 3), domain="easy"),
        replace(played.trajectory(rng, turns=4, rewards=[-0.1] * 4), domain="hard"),
    ]
    figures = {key: value for key, value in behaviour(members).items() if key.startswith("domain/")}
    assert figures == pytest.approx(
        {
            "domain/easy/success": 1 / 3,
            "domain/easy/reward": 0.5,
            "domain/easy/turns": 2.0,
            "domain/easy/share": 0.75,
            "domain/hard/success": 0.0,
            "domain/hard/reward": -0.4,
            "domain/hard/turns": 4.0,
            "domain/hard/share": 0.25,
        }
    )


def test_the_only_environment_of_a_run_has_no_figures_of_its_own() -> None:
    members = [played.trajectory(np.random.default_rng(0))]
    assert not [key for key in behaviour(members) if key.startswith("domain/")]


def test_a_round_tells_how_long_and_how_good_its_episodes_are() -> None:
    rng = np.random.default_rng(0)
    groups = [
        replace(played.group(rng), round_kind="short"),
        replace(played.group(rng), round_kind="short"),
    ]
    members = [t for group in groups for t in group.trajectories]
    assert rounds(groups) == pytest.approx(
        {
            "round/long": 0.0,
            "round/short_turns": np.mean([len(t.turns) for t in members]),
            "round/short_reward": np.mean([t.reward for t in members]),
            "round/short_tokens": np.mean([sum(t.action_mask) for t in members]),
        }
    )
    assert rounds([replace(groups[0], round_kind="long")])["round/long"] == 1.0
    assert rounds([replace(groups[0], round_kind="")]) == {}
