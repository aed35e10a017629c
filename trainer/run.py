"""A run from recipe to report: data → policy → sandboxes → evaluate, learn, evaluate → report.

The learner works in this process, everything that plays in the rollout process beside it. Whatever
interrupts a run, what it leaves behind is a folder that `resume` goes on from.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from rocknroll.envs.registry import family as make_family
from rocknroll.envs.text import Family
from rocknroll.trainer import report
from rocknroll.trainer.controller import ServiceStream
from rocknroll.trainer.learner import Learner
from rocknroll.trainer.policy import check_policy, load_policy
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.results import EvalResult, TrainResult
from rocknroll.trainer.rollout.service import RolloutBatch, RolloutService
from rocknroll.trainer.run_folder import RunFolder
from rocknroll.trainer.storage import write_trajectories
from rocknroll.trainer.ui import RunUI
from rocknroll.trainer.warmstart import prepare_policy

Split = Literal["train", "seen", "unseen"]


def train(recipe: Recipe, folder: RunFolder, ui: RunUI, *, resume: bool = False) -> TrainResult:
    """Run `recipe` in `folder`, or go on with the run that is there.

    Raises:
        RecipeError, EnvDataError, PolicyError, SandboxError, RolloutFailed: as their texts say; the folder stays
            resumable.
        KeyboardInterrupt: after the step in hand was checkpointed.
    """
    began = time.monotonic()
    if recipe.policy.model != "tiny":
        check_policy(recipe.policy.model)  # before minutes go into making games
    family = prepare_family(recipe, ui)
    ui.phase("policy")
    policy = prepare_policy(recipe, family, ui.progress)
    folder.write_recipe(recipe)
    with rollouts(recipe, policy, ui) as service:
        run = _Run(recipe, folder, family, service, ui)
        return run.go(policy, resume=resume, began=began)


def evaluate(recipe: Recipe, model: Path, *, split: Split, episodes: int, temperature: float, ui: RunUI) -> EvalResult:
    """Play the first `episodes` tasks of `split` with the model in a folder."""
    family = prepare_family(recipe, ui)
    with rollouts(recipe, model, ui) as service:
        return play_evaluation(service, family, split, episodes, temperature, ui)


def prepare_family(recipe: Recipe, ui: RunUI) -> Family:
    """The recipe's environment family, with its data in place."""
    family = make_family(recipe.env.name, recipe.env.config)
    ui.phase(f"{recipe.env.name} data")
    family.prepare(lambda done, total: ui.progress("games", done, total))
    return family


@contextmanager
def rollouts(recipe: Recipe, model: Path, ui: RunUI) -> Iterator[RolloutService]:
    """A running rollout process, stopped on the way out whatever happens."""
    ui.phase("sandboxes")
    service = RolloutService(recipe, model)
    try:
        service.ready()
        yield service
    finally:
        service.stop()


def play_evaluation(
    service: RolloutService, family: Family, split: Split, episodes: int, temperature: float, ui: RunUI
) -> EvalResult:
    """Evaluate the policy that the service holds now."""
    tasks = family.tasks(split)[:episodes]
    phase = f"evaluating {split}"
    trajectories = service.evaluate(tasks, temperature, lambda done, total: ui.progress(phase, done, total))
    return EvalResult.of(split, ((t.task_kind, t.success) for t in trajectories))


class _Run:
    """One call of `train`, once its parts are there."""

    def __init__(self, recipe: Recipe, folder: RunFolder, family: Family, service: RolloutService, ui: RunUI) -> None:
        self._recipe = recipe
        self._folder = folder
        self._family = family
        self._service = service
        self._ui = ui

    def go(self, policy: Path, *, resume: bool, began: float) -> TrainResult:
        recipe, folder = self._recipe, self._folder
        if resume and not any(folder.checkpoints.glob("checkpoint-*")):
            resume = False  # stopped before its first checkpoint: there is nothing yet to go on from
            folder.metrics_file.unlink(missing_ok=True)
        model, tokenizer = load_policy(str(policy), recipe.policy.dtype)
        weights = folder.path / "weights.safetensors"
        learner = Learner(
            model=model,
            tokenizer=tokenizer,
            stream=ServiceStream(self._service, weights, self._on_batch),
            section=recipe.learner,
            run_dir=folder.path,
            report_to=recipe.report_to,
            seed=recipe.seed,
            temperature=recipe.rollout.temperature,
            checkpoint_every=recipe.checkpoint_every,
            on_iteration=self._on_iteration,
            num_groups=recipe.rollout.num_groups,
            max_staleness=math.ceil(recipe.rollout.async_ratio),
        )
        self._evaluate("before RL", 0)
        self._ui.phase("learning")
        try:
            learner.learn(resume=resume)
        finally:
            weights.unlink(missing_ok=True)
        learner.save_policy(folder.policy)
        self._evaluate("after RL", recipe.learner.iterations)
        report.write(folder)
        return self._result(time.monotonic() - began)

    def _on_batch(self, version: int, batch: RolloutBatch) -> None:
        write_trajectories(self._folder.trajectories, version + 1, batch.groups)  # as in metrics.jsonl

    def _on_iteration(self, metrics: Mapping[str, float]) -> None:
        iteration, every = int(metrics["iteration"]), self._recipe.eval.every
        self._ui.iteration(iteration, self._recipe.learner.iterations, metrics)
        if every and iteration % every == 0 and iteration < self._recipe.learner.iterations:
            self._evaluate(f"iteration {iteration}", iteration)

    def _evaluate(self, label: str, iteration: int) -> None:
        section = self._recipe.eval
        done = {(row.iteration, row.result.split) for row in self._folder.evaluations()}
        for split in section.splits:
            if (iteration, split) in done:
                continue  # a resumed run was stopped behind this evaluation
            result = play_evaluation(
                self._service, self._family, split, section.episodes, section.temperature, self._ui
            )
            self._folder.append_evaluation(iteration, result)
            self._ui.evaluation(label, result)

    def _result(self, wall_s: float) -> TrainResult:
        evaluations = [row for row in self._folder.evaluations() if row.result.split == self._recipe.eval.splits[0]]
        before, after = evaluations[0].result, evaluations[-1].result
        rollout = self._recipe.rollout
        return TrainResult(
            run=self._folder.path,
            episodes=self._recipe.learner.iterations * rollout.num_groups * rollout.group_size,
            success_before=before.success_rate,
            success_after=after.success_rate,
            ci95_after=after.ci95,
            wall_s=wall_s,
        )
