"""A run from recipe to report: data → policy → sandboxes → evaluate, learn, evaluate → report.

The learner works in this process, everything that plays in the rollout process beside it. Whatever
interrupts a run, what it leaves behind is a folder that `resume` goes on from.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Literal

from rocknroll.trainer import report
from rocknroll.trainer.controller import ServiceStream
from rocknroll.trainer.domains import Domain, Domains
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
    domains = prepare_domains(recipe, ui)
    ui.phase("policy")
    policy = prepare_policy(recipe, domains.families, ui.progress)
    folder.write_recipe(recipe)
    with rollouts(recipe, policy, ui) as service:
        run = _Run(recipe, folder, domains, service, ui)
        return run.go(policy, resume=resume, began=began)


def evaluate(
    recipe: Recipe,
    model: Path,
    *,
    split: Split,
    episodes: int,
    temperature: float,
    ui: RunUI,
    domain: str | None = None,
) -> tuple[EvalResult, ...]:
    """Play the first `episodes` tasks of `split` of every domain, or of the one named, with the model in a folder."""
    domains = prepare_domains(recipe, ui)
    with rollouts(recipe, model, ui) as service:
        chosen = domains if domain is None else [domains[domain]]
        return tuple(play_evaluation(service, part, split, episodes, temperature, ui) for part in chosen)


def prepare_domains(recipe: Recipe, ui: RunUI) -> Domains:
    """The recipe's environments, with their data in place."""
    domains = Domains(recipe)
    for domain in domains:
        ui.phase(f"{domain.title} data")
        domain.family.prepare(lambda done, total: ui.progress("games", done, total))
    return domains


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
    service: RolloutService, domain: Domain, split: Split, episodes: int, temperature: float, ui: RunUI
) -> EvalResult:
    """Evaluate the policy that the service holds now."""
    tasks = domain.tasks(split)[:episodes]
    phase = f"evaluating {domain.name} {split}" if domain.name else f"evaluating {split}"
    trajectories = service.evaluate(tasks, temperature, lambda done, total: ui.progress(phase, done, total))
    return EvalResult.of(split, ((t.task_kind, t.success) for t in trajectories), domain.name)


class _Run:
    """One call of `train`, once its parts are there."""

    def __init__(self, recipe: Recipe, folder: RunFolder, domains: Domains, service: RolloutService, ui: RunUI) -> None:
        self._recipe = recipe
        self._folder = folder
        self._domains = domains
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
        done = {(row.iteration, row.result.domain, row.result.split) for row in self._folder.evaluations()}
        for split, domain in product(section.splits, self._domains):
            if (iteration, domain.name, split) in done:
                continue  # a resumed run was stopped behind this evaluation
            result = play_evaluation(self._service, domain, split, section.episodes, section.temperature, self._ui)
            self._folder.append_evaluation(iteration, result)
            self._ui.evaluation(label, result)

    def _result(self, wall_s: float) -> TrainResult:
        evaluations = [row for row in self._folder.evaluations() if row.result.split == self._recipe.eval.splits[0]]
        before, after = (
            EvalResult.pooled(row.result for row in evaluations if row.iteration == iteration)
            for iteration in (evaluations[0].iteration, evaluations[-1].iteration)
        )
        rollout = self._recipe.rollout
        return TrainResult(
            run=self._folder.path,
            episodes=self._recipe.learner.iterations * rollout.num_groups * rollout.group_size,
            success_before=before.success_rate,
            success_after=after.success_rate,
            ci95_after=after.ci95,
            wall_s=wall_s,
        )
