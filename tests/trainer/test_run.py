"""A run checks what it can before it begins, and never takes a folder that another has taken meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocknroll.trainer import run
from rocknroll.trainer.errors import RecipeError, RunFolderError
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.results import EvalResult
from rocknroll.trainer.rollout.loop import RolloutFailed
from rocknroll.trainer.run_folder import RunFolder
from rocknroll.trainer.ui import Quiet

ENDED = {"learner": {"iterations": 1}, "eval": {"splits": ["unseen"]}, "rollout": {"num_groups": 2, "group_size": 3}}


class Listener(Quiet):
    def __init__(self) -> None:
        self.said: list[str] = []

    def message(self, text: str) -> None:
        self.said.append(text)


def test_cores_that_are_not_there_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    recipe = Recipe.model_validate({"learner": {"cores": [100_000]}})
    with pytest.raises(RecipeError, match=r"`learner.cores` names cores \[100000\]"):
        run.train(recipe, RunFolder(tmp_path / "x"), Quiet())
    assert not list(tmp_path.iterdir())


def test_a_run_that_has_ended_is_reported_again_and_left_as_it_is(tmp_path: Path) -> None:
    recipe, folder, ui = Recipe.model_validate(ENDED), RunFolder(tmp_path), Listener()
    folder.write_recipe(recipe)
    folder.policy.mkdir()
    folder.report.touch()
    folder.metrics_file.write_text('{"iteration": 1}\n')
    folder.append_evaluation(0, EvalResult("unseen", 4, 1))
    folder.append_evaluation(1, EvalResult("unseen", 4, 3))
    before = {path.name for path in tmp_path.iterdir()}
    result = run.train(recipe, folder, ui, resume=True)
    assert (result.success_before, result.success_after, result.episodes) == (0.25, 0.75, 6)
    assert ui.said == [f"{tmp_path} has ended: nothing is left to do"]
    assert {path.name for path in tmp_path.iterdir()} == before | {"run.lock"}


def test_a_run_that_another_process_began_meanwhile_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path)

    def slowly(recipe: Recipe, ui: object) -> tuple[None, Path]:
        folder.write_recipe(Recipe(name="theirs"))
        return None, tmp_path

    monkeypatch.setattr(run, "prepare", slowly)
    with pytest.raises(RunFolderError, match="begun while this one was being prepared"):
        run.train(Recipe(name="ours"), folder, Quiet())
    assert folder.recipe().name == "theirs"


def test_a_run_that_another_process_goes_on_with_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_recipe(Recipe())
    with folder.held(), pytest.raises(RunFolderError, match="is being written by process"):
        run.train(Recipe(), folder, Quiet(), resume=True)


def test_rollouts_that_never_begin_say_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Dead:
        def __init__(self, recipe: Recipe, model: Path, *, run_folder: Path) -> None:
            assert run_folder == tmp_path / "x"

        def ready(self) -> None:
            raise RolloutFailed("no sandbox starts.")

        def stop(self) -> None: ...

    monkeypatch.setattr(run, "prepare", lambda recipe, ui: (None, tmp_path))
    monkeypatch.setattr(run, "RolloutService", Dead)
    with pytest.raises(RolloutFailed, match=r"no sandbox starts\. .* roll train --resume .*/x$"):
        run.train(Recipe(name="x"), RunFolder(tmp_path / "x"), Quiet())
    assert RunFolder(tmp_path / "x").exists()
