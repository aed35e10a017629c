"""A run checks what it can before it begins, and never takes a folder that another has taken meanwhile."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import MambaConfig, MambaForCausalLM

from rocknroll.trainer import run
from rocknroll.trainer.errors import RecipeError, RunFolderError
from rocknroll.trainer.policy import PolicyError, build_tokenizer, make_tiny, save_policy
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.results import EvalResult
from rocknroll.trainer.rollout.loop import RolloutFailed
from rocknroll.trainer.run_folder import RunFolder
from rocknroll.trainer.tiny_model import TinyModel
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


def attentionless(folder: Path) -> Path:
    """A saved model that has no attention."""
    tokenizer = build_tokenizer(["look"])
    config = MambaConfig(vocab_size=len(tokenizer), hidden_size=8, state_size=4, num_hidden_layers=1)
    save_policy(MambaForCausalLM(config), tokenizer, folder)
    return folder


@pytest.mark.parametrize("kind", ["local", "global", "coupled"])
def test_credit_from_a_model_without_attention_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(run, "prepare_domains", None)
    model = attentionless(tmp_path / "mamba")
    recipe = Recipe.model_validate({"policy": {"model": str(model)}, "credit": {"kind": kind}})
    with pytest.raises(PolicyError, match=r"\(mamba\) has no attention weights, which `credit\.kind` reads"):
        run.train(recipe, RunFolder(tmp_path / "x"), Quiet())
    assert not (tmp_path / "x").exists()


def test_windows_beyond_a_models_context_are_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "prepare_domains", None)
    tokenizer = build_tokenizer(["look"])
    save_policy(make_tiny(TinyModel(max_length=64), tokenizer, 0), tokenizer, tmp_path / "short")
    credit = {"kind": "global", "windows": {"fai_from": 64, "fai_to": 99}}
    recipe = Recipe.model_validate({"policy": {"model": str(tmp_path / "short")}, "credit": credit})
    with pytest.raises(PolicyError, match=r"`credit\.windows\.fai_from` \(64\) is longer than any response of"):
        run.train(recipe, RunFolder(tmp_path / "x"), Quiet())


def test_a_critic_that_reads_other_text_than_the_policy_is_refused_before_a_sandbox_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "prepare_domains", lambda recipe, ui: SimpleNamespace(families=()))
    monkeypatch.setattr(run, "rollouts", None)
    monkeypatch.setenv("ROCKNROLL_CACHE", str(tmp_path / "cache"))
    tokenizer, larger = build_tokenizer(["look"]), build_tokenizer(["look around"])
    save_policy(make_tiny(TinyModel(), tokenizer, 0), tokenizer, tmp_path / "critic")
    save_policy(make_tiny(TinyModel(), larger, 0), larger, tmp_path / "policy")
    critics = {"kind": "asyppo", "model": str(tmp_path / "critic")}
    policy = {"model": str(tmp_path / "policy")}
    recipe = Recipe.model_validate({"policy": policy, "warmstart": {"enabled": False}, "critics": critics})
    with pytest.raises(PolicyError, match=r"knows 6 tokens and the policy 7.*`critics\.model`"):
        run.train(recipe, RunFolder(tmp_path / "x"), Quiet())


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
