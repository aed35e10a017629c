"""`roll replay` checks what is asked before it loads anything, and plans an offline run from the run's own recipe."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from rocknroll.trainer.cli.exit_codes import ExitCode
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.run_folder import RunFolder
from rocknroll.trainer.storage import write_trajectories
from rocknroll.trainer.trajectory import NO_VERSION, Group, Outcome, Trajectory

Roll = Callable[..., Result]


@pytest.fixture
def source(tmp_path: Path) -> RunFolder:
    """A run of three stored batches."""
    folder = RunFolder(tmp_path / "runs" / "x")
    folder.write_recipe(Recipe(name="x", seed=9))
    silent = Trajectory(
        id="g0.0.0",
        group_id="g0",
        task_id="task",
        task_kind="kind",
        token_ids=np.array([1], np.int32),
        action_mask=np.array([False]),
        logprobs=np.zeros(1, np.float32),
        versions=np.array([NO_VERSION], np.int32),
        turns=(),
        outcome=Outcome.COMPLETED,
        success=False,
    )
    for iteration in (1, 2, 3):
        write_trajectories(folder.trajectories, iteration, [Group("g0", "task", (silent,))])
    return folder


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--iterations", "a:b"], "FIRST:LAST"),
        (["--iterations", "9:3"], "the first is behind the last"),
        (["--policy", "p", "--checkpoint", "3"], "give one of them"),
        (["learner.epochs=2"], "belong to --train"),
        (["--name", "y"], "belong to --train"),
        (["--train"], "--name"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(roll: Roll, source: RunFolder, arguments: list[str], says: str) -> None:
    result = roll("replay", "runs/x", *arguments)
    assert result.exit_code == ExitCode.USAGE
    assert says in " ".join(result.stderr.split())


def test_a_run_without_a_policy_says_so(roll: Roll, source: RunFolder) -> None:
    result = roll("replay", "runs/x")
    assert result.exit_code == ExitCode.RUN_FOLDER
    assert "no policy yet" in result.stderr


def test_an_offline_run_is_planned_from_the_runs_recipe(roll: Roll, source: RunFolder, tmp_path: Path) -> None:
    result = roll(
        "replay",
        "runs/x",
        "--iterations",
        "2:",
        "--train",
        "learner.objective=tis",
        "--name",
        "y",
        "--dry-run",
        "--json",
    )
    assert result.exit_code == ExitCode.OK, result.stderr
    plan = json.loads(result.stdout)
    assert (plan["run"], plan["source"]) == ("runs/y", "runs/x")
    recipe = plan["recipe"]
    assert (recipe["seed"], recipe["learner"]["iterations"], recipe["learner"]["objective"]) == (9, 2, "tis")
    assert not (tmp_path / "runs" / "y").exists()


@pytest.mark.parametrize(
    ("override", "says"), [("learner.iterations=4", "3 stored batches"), ("learner.mismatch.mode=token", "mismatch")]
)
def test_what_stored_batches_cannot_give_is_refused(roll: Roll, source: RunFolder, override: str, says: str) -> None:
    result = roll("replay", "runs/x", "--train", override, "--name", "y")
    assert result.exit_code == ExitCode.RECIPE
    assert says in result.stderr


def test_an_earlier_run_is_not_overwritten(roll: Roll, source: RunFolder, tmp_path: Path) -> None:
    RunFolder(tmp_path / "runs" / "y").write_recipe(Recipe(name="y"))
    result = roll("replay", "runs/x", "--train", "--name", "y")
    assert result.exit_code == ExitCode.RUN_FOLDER
    assert "never overwrites" in result.stderr


def test_the_run_that_is_replayed_is_never_replaced(roll: Roll, source: RunFolder) -> None:
    assert roll("replay", "runs/x", "--train", "--name", "x", "--force").exit_code == ExitCode.USAGE
    assert source.exists()
