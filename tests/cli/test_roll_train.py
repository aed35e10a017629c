"""`roll train` and `roll eval` hand the right recipe to a run, and tell what came of it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import Result

import rocknroll.trainer
from rocknroll.trainer.cli.exit_codes import ExitCode
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.results import EvalResult, KindResult, TrainResult
from rocknroll.trainer.run_folder import RunFolder
from rocknroll.trainer.ui import RunUI

Roll = Callable[..., Result]
EVALUATED = EvalResult("unseen", 4, 3, {"heat": KindResult(4, 3)})


@dataclass
class FakeRun(ModuleType):
    """Stands for `rocknroll.trainer.run`: remembers its calls, plays nothing."""

    fail_with: BaseException | None = None
    calls: list[tuple[str, Recipe, Mapping[str, Any]]] = field(default_factory=list)

    def train(self, recipe: Recipe, folder: RunFolder, ui: RunUI, *, resume: bool = False) -> TrainResult:
        self.calls.append(("train", recipe, {"folder": folder.path, "resume": resume}))
        ui.phase("learning")
        os.write(1, b"noise of a library\n")
        folder.write_recipe(recipe)
        if self.fail_with:
            raise self.fail_with
        ui.progress("games", 3, 3)
        ui.iteration(1, 2, {"batch/success": 0.5, "idle/engine": 0.1})
        ui.evaluation("after RL", EVALUATED)
        folder.append_evaluation(0, EvalResult("unseen", 4, 1, {"heat": KindResult(4, 1)}))
        folder.append_evaluation(2, EVALUATED)
        return TrainResult(folder.path, 8, 0.25, 0.75, EVALUATED.ci95, 1.5)

    def evaluate(self, recipe: Recipe, model: Path, **options: Any) -> tuple[EvalResult, ...]:
        self.calls.append(("evaluate", recipe, {"model": model, **options}))
        wanted = recipe.domains if options["domain"] is None else [options["domain"]]
        return tuple(replace(EVALUATED, domain=name) for name in wanted) or (EVALUATED,)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    fake = FakeRun()
    fake.__name__ = "rocknroll.trainer.run"
    monkeypatch.setitem(sys.modules, "rocknroll.trainer.run", fake)
    monkeypatch.setattr(rocknroll.trainer, "run", fake, raising=False)
    return fake


def last_line(result: Result) -> dict[str, Any]:
    found = json.loads(result.stdout.rstrip("\n").rpartition("\n")[2])
    assert isinstance(found, dict)
    return found


def test_json_is_the_last_line_of_stdout_and_nothing_else_is_there(
    roll: Roll, run: FakeRun, capfd: pytest.CaptureFixture[str]
) -> None:
    result = roll("train", "alfworld", "--json")
    assert capfd.readouterr() == ("", "noise of a library\n")
    assert result.exit_code == ExitCode.OK, result.stderr
    assert last_line(result) == {
        "run": "runs/alfworld",
        "episodes": 8,
        "success_before": 0.25,
        "success_after": 0.75,
        "ci95_after": list(EVALUATED.ci95),
        "wall_s": 1.5,
    }
    assert result.stdout.count("\n") == 1


def test_the_summary_shows_before_and_after(roll: Roll, run: FakeRun) -> None:
    out = roll("train", "alfworld").stdout
    assert "before RL      25.0% of 4 unseen tasks" in out
    assert "iteration 2    75.0% of 4 unseen tasks" in out
    assert "heat" in out


def test_progress_goes_to_stderr(roll: Roll, run: FakeRun) -> None:
    result = roll("train", "alfworld")
    assert "games 3/3" in result.stderr
    assert "iteration 1/2  success 50%  idle engine 10%" in result.stderr
    assert "after RL: 75.0% of 4 unseen tasks (95%: 30.1%–95.4%)" in result.stderr


def test_overrides_and_name_reach_the_run(roll: Roll, run: FakeRun) -> None:
    roll("train", "alfworld", "seed=5", "--name", "2nd")
    (_, recipe, options) = run.calls[0]
    assert (recipe.seed, recipe.name, options) == (5, "2nd", {"folder": Path("runs/2nd"), "resume": False})


def test_dry_run_shows_the_recipe_and_runs_nothing(roll: Roll, run: FakeRun, tmp_path: Path) -> None:
    result = roll("train", "alfworld", "--dry-run", "seed=5")
    assert "seed: 5" in result.stdout
    assert not run.calls
    assert not list(tmp_path.iterdir())


def test_resume_takes_the_recipe_of_the_run_and_overrides(roll: Roll, run: FakeRun, tmp_path: Path) -> None:
    RunFolder(tmp_path / "elsewhere" / "x").write_recipe(Recipe(name="x", seed=9))
    assert roll("train", "--resume", "elsewhere/x", "learner.iterations=50").exit_code == ExitCode.OK
    (_, recipe, options) = run.calls[0]
    assert (recipe.seed, recipe.learner.iterations) == (9, 50)
    assert Path(recipe.output_dir) / recipe.name == tmp_path / "elsewhere" / "x"
    assert options == {"folder": Path("elsewhere/x"), "resume": True}


def test_resume_accepts_the_recipe_it_was_started_with(roll: Roll, run: FakeRun) -> None:
    roll("train", "alfworld")
    assert roll("train", "alfworld", "--resume", "runs/alfworld").exit_code == ExitCode.OK


def test_force_replaces_the_earlier_run(roll: Roll, run: FakeRun, tmp_path: Path) -> None:
    roll("train", "alfworld")
    stale = tmp_path / "runs" / "alfworld" / "stale"
    stale.touch()
    assert roll("train", "alfworld", "--force").exit_code == ExitCode.OK
    assert not stale.exists()


def test_ctrl_c_prints_how_to_go_on(roll: Roll, run: FakeRun) -> None:
    run.fail_with = KeyboardInterrupt()
    result = roll("train", "alfworld")
    assert result.exit_code == ExitCode.INTERRUPTED
    assert "Go on with: roll train --resume runs/alfworld" in result.stderr


def test_an_unforeseen_error_is_one_paragraph(roll: Roll, run: FakeRun) -> None:
    run.fail_with = ZeroDivisionError("float division")
    result = roll("train", "alfworld")
    assert result.exit_code == ExitCode.UNEXPECTED
    assert "Unexpected ZeroDivisionError: float division" in result.stderr
    assert "Traceback" not in result.stderr


def test_eval_of_a_run_plays_its_policy_with_its_recipe(roll: Roll, run: FakeRun, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs" / "x")
    folder.write_recipe(Recipe(name="x", seed=9))
    folder.policy.mkdir()
    result = roll("eval", "runs/x", "--split", "seen", "--episodes", "5", "eval.temperature=0.5", "--json")
    assert result.exit_code == ExitCode.OK, result.stderr
    (_, recipe, options) = run.calls[0]
    assert recipe.seed == 9
    assert options["model"] == Path("runs/x/policy")
    assert (options["split"], options["episodes"], options["temperature"]) == ("seen", 5, 0.5)
    printed = last_line(result)
    assert (printed["episodes"], printed["successes"], printed["success_rate"]) == (4, 3, 0.75)
    assert printed["ci95"] == list(EVALUATED.ci95)


def test_eval_of_a_checkpoint_uses_the_recipe_of_its_run(roll: Roll, run: FakeRun, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs" / "x")
    folder.write_recipe(Recipe(name="x", seed=9))
    checkpoint = folder.checkpoints / "checkpoint-20"
    checkpoint.mkdir(parents=True)
    roll("eval", checkpoint)
    (_, recipe, options) = run.calls[0]
    assert (recipe.seed, options["model"]) == (9, checkpoint)


def test_eval_of_a_model_plays_alfworld_unless_told_otherwise(roll: Roll, run: FakeRun) -> None:
    roll("eval", "someone/model")
    roll("eval", "someone/model", "--recipe", "alfworld-smoke")
    assert [recipe.name for _, recipe, _ in run.calls] == ["alfworld", "alfworld-smoke"]


def test_an_unknown_split_is_a_recipe_error(roll: Roll, run: FakeRun) -> None:
    result = roll("eval", "someone/model", "--split", "test")
    assert result.exit_code == ExitCode.RECIPE
    assert "'train', 'seen' or 'unseen'" in result.stderr


def test_eval_of_several_domains_shows_each_and_counts_them_together(roll: Roll, run: FakeRun) -> None:
    of_both = ("eval", "someone/model", "--recipe", "alfworld-curriculum")
    out = roll(*of_both).stdout
    assert "75.0% of 4 easy unseen tasks" in out and "75.0% of 4 hard unseen tasks" in out
    printed = last_line(roll(*of_both, "--json"))
    assert (printed["episodes"], printed["successes"]) == (8, 6)
    assert [part["domain"] for part in printed["domains"]] == ["easy", "hard"]


def test_eval_of_one_domain_is_a_result_like_any_other(roll: Roll, run: FakeRun) -> None:
    printed = last_line(roll("eval", "someone/model", "--recipe", "alfworld-curriculum", "--domain", "hard", "--json"))
    assert run.calls[0][2]["domain"] == "hard"
    assert (printed["domain"], printed["episodes"], "domains" in printed) == ("hard", 4, False)


def test_eval_of_an_unknown_domain_names_those_there_are(roll: Roll, run: FakeRun) -> None:
    result = roll("eval", "someone/model", "--recipe", "alfworld-curriculum", "--domain", "harder")
    assert result.exit_code == ExitCode.USAGE
    assert "no domain" in result.stderr and "easy, hard" in result.stderr
    assert "no domains" in roll("eval", "someone/model", "--domain", "hard").stderr
    assert not run.calls
