"""Bad input ends in one paragraph that says what, why and what to do; nothing is left half-written."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from rocknroll.trainer.cli.exit_codes import ExitCode
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.run_folder import RunFolder

Roll = Callable[..., Result]


def assert_told(result: Result, code: ExitCode, *says: str) -> None:
    assert result.exit_code == code, result.stderr
    assert result.stdout == ""
    paragraph = result.stderr.strip()
    assert "\n" not in paragraph
    assert "Traceback" not in paragraph
    for words in says:
        assert words in paragraph


def test_unknown_key_names_the_nearest(roll: Roll, tmp_path: Path) -> None:
    result = roll("train", "alfworld", "learner.iteration=3")
    assert_told(result, ExitCode.RECIPE, "`learner.iteration`", "Did you mean `learner.iterations`?")
    assert not list(tmp_path.iterdir())


def test_wrong_type_says_what_was_expected(roll: Roll) -> None:
    result = roll("train", "alfworld", "learner.iterations=many")
    assert_told(result, ExitCode.RECIPE, "must be a whole number", '"many" (text)')


def test_missing_recipe_lists_the_shipped_ones(roll: Roll) -> None:
    assert_told(roll("train", "recipes/alfwrld.yaml"), ExitCode.RECIPE, "Did you mean `alfworld`?")


def test_no_recipe_is_a_usage_error(roll: Roll) -> None:
    result = roll("train", "seed=1")
    assert result.exit_code == ExitCode.USAGE
    assert "roll train alfworld" in result.stderr


@pytest.mark.parametrize(
    "arguments", [["trin"], ["train", "--jsn"], ["eval"], ["validate", "alfworld", "--games", "0"]]
)
def test_a_wrong_command_line_is_a_usage_error(roll: Roll, arguments: list[str]) -> None:
    assert roll(*arguments).exit_code == ExitCode.USAGE


def test_unknown_tracker_names_the_nearest(roll: Roll) -> None:
    result = roll("train", "alfworld", "report_to=[tensorbord]", "--dry-run")
    assert_told(result, ExitCode.RECIPE, "unknown tracker `tensorbord`", "Did you mean `tensorboard`?")


def test_missing_tracker_says_how_to_install_it(roll: Roll, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "swanlab", None)
    monkeypatch.setattr("rocknroll.trainer.trackers.find_spec", lambda name: None)
    result = roll("train", "alfworld", "report_to=[swanlab]")
    assert_told(result, ExitCode.RECIPE, "`swanlab`, which is not installed", "pip install 'rocknroll[swanlab]'")


def test_existing_run_is_never_overwritten(roll: Roll, tmp_path: Path) -> None:
    RunFolder(tmp_path / "runs" / "alfworld").write_recipe(Recipe(name="alfworld"))
    before = (tmp_path / "runs" / "alfworld" / "recipe.yaml").read_bytes()
    result = roll("train", "alfworld")
    assert_told(result, ExitCode.RUN_FOLDER, "--resume runs/alfworld", "--name", "--force")
    assert (tmp_path / "runs" / "alfworld" / "recipe.yaml").read_bytes() == before


def test_a_folder_that_is_no_run_is_left_alone_even_with_force(roll: Roll, tmp_path: Path) -> None:
    precious = tmp_path / "runs" / "alfworld" / "thesis.tex"
    precious.parent.mkdir(parents=True)
    precious.write_text("x")
    assert_told(roll("train", "alfworld", "--force"), ExitCode.RUN_FOLDER, "is no run")
    assert precious.exists()


@pytest.mark.parametrize("also", ["--dry-run", "report_to=[nothing]", "env.config.max_steps=-1"])
def test_force_removes_nothing_before_everything_was_checked(roll: Roll, tmp_path: Path, also: str) -> None:
    RunFolder(tmp_path / "runs" / "alfworld").write_recipe(Recipe(name="alfworld"))
    roll("train", "alfworld", "--force", also)
    assert (tmp_path / "runs" / "alfworld" / "recipe.yaml").exists()


@pytest.mark.parametrize("command", ["inspect", "train --resume"])
def test_a_run_that_is_not_there_names_those_that_are(roll: Roll, tmp_path: Path, command: str) -> None:
    RunFolder(tmp_path / "runs" / "alfworld").write_recipe(Recipe(name="alfworld"))
    result = roll(*command.split(), "runs/alfwrld")
    assert_told(result, ExitCode.RUN_FOLDER, "runs/alfwrld is no run", "runs/alfworld")


def test_resume_with_another_recipe_names_what_differs(roll: Roll, tmp_path: Path) -> None:
    RunFolder(tmp_path / "runs" / "x").write_recipe(Recipe(name="x", seed=1))
    result = roll("train", "alfworld", "--resume", "runs/x")
    assert_told(result, ExitCode.RUN_FOLDER, "`seed`", "Leave the recipe out")


def test_resume_keeps_what_trajectories_depend_on(roll: Roll, tmp_path: Path) -> None:
    RunFolder(tmp_path / "runs" / "x").write_recipe(Recipe(name="x", seed=1))
    result = roll("train", "--resume", "runs/x", "seed=2")
    assert_told(result, ExitCode.RUN_FOLDER, "keeps the `seed`", "--name")


def test_a_run_that_is_at_work_is_not_replaced(roll: Roll, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs" / "alfworld")
    folder.write_recipe(Recipe(name="alfworld"))
    with folder.held():
        assert_told(roll("train", "alfworld", "--force"), ExitCode.RUN_FOLDER, f"process {os.getpid()}")
    assert folder.exists()


def test_a_run_without_a_ledger_says_so(roll: Roll, tmp_path: Path) -> None:
    RunFolder(tmp_path / "runs" / "x").write_recipe(Recipe(name="x"))
    for arguments in (["--ledger"], ["--ledger", "--json"]):
        assert_told(roll("inspect", "runs/x", *arguments), ExitCode.RUN_FOLDER, "has no ledger")


def test_a_damaged_ledger_is_named_and_left_alone(roll: Roll, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs" / "x")
    folder.write_recipe(Recipe(name="x"))
    folder.ledger.write_bytes(b"not a database, whatever its name says")
    assert_told(roll("inspect", "runs/x", "--ledger"), ExitCode.RUN_FOLDER, "ledger.sqlite", "damaged")
    assert folder.ledger.read_bytes() == b"not a database, whatever its name says"


def test_evaluating_an_unfinished_run_says_so(roll: Roll, tmp_path: Path) -> None:
    RunFolder(tmp_path / "runs" / "x").write_recipe(Recipe(name="x"))
    assert_told(roll("eval", "runs/x"), ExitCode.RUN_FOLDER, "no trained policy yet", "--resume runs/x")


def test_a_word_that_is_no_override_is_refused(roll: Roll) -> None:
    assert_told(roll("eval", "some/model", "alfworld"), ExitCode.RECIPE, "`alfworld` is not of the form")


def test_debug_shows_the_traceback(roll: Roll) -> None:
    result = roll("train", "nothing", "--debug")
    assert result.exit_code == ExitCode.RECIPE
    assert "Traceback" in result.stderr


def test_incomplete_alfworld_data_is_a_data_error(roll: Roll, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data" / "json_2.1.1").mkdir(parents=True)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "data"))
    result = roll("train", "alfworld")
    assert_told(result, ExitCode.DATA, str(tmp_path / "data"), "incomplete")
    assert not (tmp_path / "runs").exists()


def test_an_environment_that_does_not_exist_names_the_nearest(roll: Roll, tmp_path: Path) -> None:
    assert_told(
        roll("train", "alfworld", "env.name=alfwrld"), ExitCode.RECIPE, "`env.name`", "Did you mean 'alfworld'?"
    )
    assert not list(tmp_path.iterdir())
