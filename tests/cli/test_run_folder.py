"""A run's folder is made whole, read carefully and never overwritten."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rocknroll.trainer.errors import RunFolderError
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.results import EvalResult, KindResult
from rocknroll.trainer.run_folder import RunFolder, by_split, new_run, open_run


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return Recipe(name="x", output_dir=str(tmp_path))


def test_a_new_run_makes_nothing(recipe: Recipe, tmp_path: Path) -> None:
    assert new_run(recipe).path == tmp_path / "x"
    assert not list(tmp_path.iterdir())


def test_the_recipe_reads_back(recipe: Recipe) -> None:
    new_run(recipe).write_recipe(recipe)
    folder = open_run(Path(recipe.output_dir) / "x")
    assert folder.recipe() == recipe
    assert [file.name for file in folder.path.iterdir()] == ["recipe.yaml"]


def test_an_empty_folder_is_not_in_the_way(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    assert new_run(recipe).path == tmp_path / "x"


def test_a_file_in_the_way_is_left_alone(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("precious")
    with pytest.raises(RunFolderError, match="is in the way"):
        new_run(recipe, force=True)


def test_a_run_is_written_by_one_process_at_a_time(recipe: Recipe) -> None:
    folder = new_run(recipe)
    folder.write_recipe(recipe)
    with folder.held():
        for refused in (folder.held().__enter__, folder.remove):
            with pytest.raises(RunFolderError, match=rf"being written by process {os.getpid()}.*--resume"):
                refused()
    folder.remove()
    assert not folder.path.exists()


def test_evaluations_read_back_in_order_and_by_split(recipe: Recipe) -> None:
    folder = new_run(recipe)
    folder.write_recipe(recipe)
    results = [EvalResult(split, 2, won, {"heat": KindResult(2, won)}) for split, won in (("unseen", 0), ("seen", 1))]
    for iteration, result in enumerate([*results, results[0]]):
        folder.append_evaluation(iteration, result)
    rows = folder.evaluations()
    assert [(row.iteration, row.result) for row in rows] == [(0, results[0]), (1, results[1]), (2, results[0])]
    assert {split: [row.iteration for row in found] for split, found in by_split(rows).items()} == {
        "unseen": [0, 2],
        "seen": [1],
    }


def test_a_row_that_a_killed_writer_left_unfinished_is_no_record(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.metrics_file.write_text('{"iteration": 1}\n{"iterat')
    assert folder.metrics() == [{"iteration": 1}]


def test_an_unfinished_row_does_not_spoil_the_next(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.append_evaluation(1, EvalResult("seen", 2, 1))
    with folder.evaluations_file.open("a") as file:
        file.write('{"iterat')
    folder.append_evaluation(2, EvalResult("seen", 2, 2))
    assert [row.iteration for row in folder.evaluations()] == [1, 2]


def test_a_broken_row_is_named_with_its_line(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.metrics_file.write_text('{"iteration": 1}\n{"iterat\n{"iteration": 3}\n')
    with pytest.raises(RunFolderError, match=r"metrics.jsonl, line 2: not JSON"):
        folder.metrics()


def test_an_evaluation_that_lacks_a_key_is_told(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.evaluations_file.write_text(json.dumps({"iteration": 1, "split": "seen"}) + "\n")
    with pytest.raises(RunFolderError, match="lacks 'by_kind'"):
        folder.evaluations()
