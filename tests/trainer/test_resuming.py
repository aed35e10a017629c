"""What can be gone on with, and what a run keeps for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rocknroll.trainer.errors import RunFolderError
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.results import EvalResult
from rocknroll.trainer.resuming import check_resumable, check_settled, has_ended
from rocknroll.trainer.run_folder import RunFolder

RECIPE = Recipe.model_validate({"learner": {"iterations": 2}, "eval": {"splits": ["unseen"]}})


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run that has ended."""
    made = RunFolder(tmp_path / "run")
    made.write_recipe(RECIPE)
    (made.checkpoints / "checkpoint-2").mkdir(parents=True)
    made.ledger.touch()
    made.policy.mkdir()
    made.report.touch()
    made.metrics_file.write_text('{"iteration": 1}\n{"iteration": 2}\n')
    made.append_evaluation(2, EvalResult("unseen", 4, 3))
    return made


def test_a_run_that_did_everything_has_ended(folder: RunFolder) -> None:
    check_resumable(folder)
    assert has_ended(RECIPE, folder)


@pytest.mark.parametrize("missing", ["metrics_file", "evaluations_file", "report"])
def test_a_run_that_lacks_something_has_not(folder: RunFolder, missing: str) -> None:
    getattr(folder, missing).unlink()
    assert not has_ended(RECIPE, folder)


def test_more_iterations_make_an_ended_run_go_on(folder: RunFolder) -> None:
    longer = RECIPE.model_copy(update={"learner": RECIPE.learner.model_copy(update={"iterations": 3})})
    assert not has_ended(longer, folder)


def test_checkpoints_without_a_ledger_are_refused(folder: RunFolder) -> None:
    folder.ledger.unlink()
    with pytest.raises(RunFolderError, match=r"no ledger \(ledger.sqlite\).*earlier version"):
        check_resumable(folder)


def test_a_run_that_never_played_can_be_resumed_without_a_ledger(tmp_path: Path) -> None:
    check_resumable(RunFolder(tmp_path))


def test_a_run_trained_offline_has_nothing_to_play(folder: RunFolder) -> None:
    folder.replayed_from.write_text("{}")
    with pytest.raises(RunFolderError, match="trained offline"):
        check_resumable(folder)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"seed": 5}, "`seed`"),
        ({"env": {"config": {"max_steps": 9}}}, "`env`"),
        ({"rollout": {"num_groups": 3}}, "`rollout`"),
        ({"rollout": {"temperature": 0.5}}, "`rollout`"),
    ],
)
def test_what_trajectories_depend_on_stays(change: dict[str, Any], names: str) -> None:
    with pytest.raises(RunFolderError, match=names):
        check_settled(Recipe(), Recipe.model_validate(change))


@pytest.mark.parametrize(
    "change",
    [
        {"learner": {"iterations": 99, "learning_rate": 1e-4}},
        {"rollout": {"max_infra_error_rate": 0.9, "episode_timeout_s": 5}},
        {"sandbox": {"count": 3}},
        {"checkpoint_every": 1},
    ],
)
def test_the_rest_may_change(change: dict[str, Any]) -> None:
    check_settled(Recipe(), Recipe.model_validate(change))
