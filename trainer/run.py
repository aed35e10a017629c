"""A run from recipe to report: data → policy → sandboxes → evaluate, learn, evaluate → report.

The learner works in this process, everything that plays in the rollout process beside it. Whatever
interrupts a run, what it leaves behind is a folder that `resume` goes on from.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Literal

from rocknroll.sandbox.alerts.notify import url_of
from rocknroll.sandbox.cluster import choose_cluster
from rocknroll.sandbox.errors import SpecInvalid
from rocknroll.trainer import report
from rocknroll.trainer.alerts.watch import RunWatch
from rocknroll.trainer.controller import ServiceStream
from rocknroll.trainer.credit.rhythm import ATTENTIVE
from rocknroll.trainer.domains import Domain, Domains
from rocknroll.trainer.engines.checks import check_engines
from rocknroll.trainer.engines.cores import check_cores
from rocknroll.trainer.errors import LearnerRankLost, RecipeError, RunFolderError
from rocknroll.trainer.learning import learner_of
from rocknroll.trainer.policy import check_critic, check_policy, check_readable, load_tokenizer
from rocknroll.trainer.rank_processes import RankTask
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.results import EvalResult, TrainResult
from rocknroll.trainer.resuming import check_resumable, has_checkpoint, has_ended
from rocknroll.trainer.rollout.loop import RolloutFailed
from rocknroll.trainer.rollout.service import RolloutService
from rocknroll.trainer.run_folder import RunFolder
from rocknroll.trainer.ui import RunUI
from rocknroll.trainer.warmstart import prepare_policy

Split = Literal["train", "seen", "unseen"]


def train(recipe: Recipe, folder: RunFolder, ui: RunUI, *, resume: bool = False) -> TrainResult:
    """Run `recipe` in `folder`, or go on with the run that is there.

    Raises:
        RecipeError, EnvDataError, PolicyError, SandboxError, RolloutFailed: as their texts say; the folder stays
            resumable.
        RunFolderError: another process is writing the run, or it cannot be gone on with.
        LearnerRankLost: ranks of the learner died more often than `learner.restarts`; the folder stays resumable.
        StorageError, LedgerError, CheckpointError: a file of the run is damaged.
        KeyboardInterrupt: after the step in hand was checkpointed.
    """
    began = time.monotonic()
    check_all_cores(recipe)
    choose_cluster(recipe.cluster.address)  # one that does not answer is not found out after minutes of preparation
    check_engines(recipe)
    check_webhook(recipe)
    with ExitStack() as stack:
        if resume:
            stack.enter_context(folder.held())
            check_resumable(folder)
            if has_ended(recipe, folder):
                ui.message(f"{folder.path} has ended: nothing is left to do")
                return result_of(recipe, folder, time.monotonic() - began)
        domains, policy = prepare(recipe, ui)
        if not resume:
            stack.enter_context(folder.held())
            if folder.exists():
                raise RunFolderError(f"There is a run in {folder.path} now, begun while this one was being prepared.")
        folder.write_recipe(recipe)
        try:
            return _learned(recipe, folder, domains, policy, ui, resume=resume, began=began)
        except (RolloutFailed, LearnerRankLost) as failure:
            how = f"When the cause is mended, go on with: roll train --resume {folder.path}"
            raise type(failure)(f"{failure} {how}") from failure


def _learned(
    recipe: Recipe, folder: RunFolder, domains: Domains, policy: Path, ui: RunUI, *, resume: bool, began: float
) -> TrainResult:
    """Play and learn to the end, from the last checkpoint on whenever a rank of the learner is lost."""
    left = recipe.learner.restarts
    while True:
        try:
            with rollouts(recipe, policy, ui, folder.path) as service, RunWatch(recipe, folder, ui) as watch:
                service.heard = watch.heard
                return _Run(recipe, folder, domains, service, ui, watch).go(policy, resume=resume, began=began)
        except LearnerRankLost as lost:
            if not left:
                raise
            left -= 1
            ui.message(f"{lost} Going on from the last checkpoint ({left} restarts left)")
            resume = True


def check_all_cores(recipe: Recipe) -> None:
    """See that this machine has the cores that the recipe names, before any work is done.

    Raises:
        RecipeError: it lacks some.
    """
    for part in ("sandbox", "engine", "learner"):
        cores = getattr(recipe, part).cores
        if cores is not None:
            check_cores(cores, f"{part}.cores")


def check_webhook(recipe: Recipe) -> None:
    """See that alerts could be told, before any work is done.

    Raises:
        RecipeError: the webhook's URL is not where the recipe says.
    """
    if recipe.alerts.webhook is not None:
        try:
            url_of(recipe.alerts.webhook, os.environ)
        except SpecInvalid as invalid:
            raise RecipeError(str(invalid)) from invalid


def prepare(recipe: Recipe, ui: RunUI) -> tuple[Domains, Path]:
    """The environments and the policy to begin with."""
    # Before minutes go into making games.
    if recipe.policy.model != "tiny":
        check_policy(recipe.policy.model)
        if recipe.credit.kind in ATTENTIVE:
            check_readable(recipe.policy.model, recipe.credit.windows.fai_from)
    critic = recipe.critics.model if recipe.critics.kind == "asyppo" else "tiny"
    if critic != "tiny":
        check_policy(critic, "critics.model")
    domains = prepare_domains(recipe, ui)
    ui.phase("policy")
    policy = prepare_policy(recipe, domains.families, ui.progress)
    if critic != "tiny":
        check_critic(critic, len(load_tokenizer(str(policy))))
    return domains, policy


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
    check_engines(recipe)
    domains = prepare_domains(recipe, ui)
    with rollouts(recipe, model, ui) as service:
        chosen = domains if domain is None else [domains[domain]]
        return tuple(play_evaluation(service, part, split, episodes, temperature, ui) for part in chosen)


def prepare_domains(recipe: Recipe, ui: RunUI) -> Domains:
    """The recipe's environments, with their data in place."""
    domains = Domains(recipe)
    for domain in domains:
        ui.phase(f"{domain.title} data")
        domain.family.prepare(lambda done, total: ui.progress("tasks", done, total))
    return domains


@contextmanager
def rollouts(recipe: Recipe, model: Path, ui: RunUI, run_folder: Path | None = None) -> Iterator[RolloutService]:
    """A running rollout process, stopped on the way out whatever happens."""
    ui.phase("sandboxes")
    ui.message(str(choose_cluster(recipe.cluster.address)))
    service = RolloutService(recipe, model, run_folder=run_folder)
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

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        domains: Domains,
        service: RolloutService,
        ui: RunUI,
        watch: RunWatch,
    ) -> None:
        self._recipe = recipe
        self._folder = folder
        self._domains = domains
        self._service = service
        self._ui = ui
        self._watch = watch

    def go(self, policy: Path, *, resume: bool, began: float) -> TrainResult:
        recipe, folder = self._recipe, self._folder
        if resume and not has_checkpoint(folder):
            resume = False  # stopped before its first checkpoint: the learner begins again, on the batches stored
            folder.metrics_file.unlink(missing_ok=True)
        weights = folder.path / "weights.safetensors"
        self._stream = ServiceStream(self._service, weights, self._on_start)
        self._evaluate("before RL", 0)
        self._ui.phase("learning")
        try:
            with learner_of(
                RankTask(recipe, policy, folder.path, math.ceil(recipe.rollout.async_ratio), resume),
                self._stream,
                self._on_iteration,
            ) as learner:
                learner.learn(resume=resume)
        finally:
            weights.unlink(missing_ok=True)
        if self._stream.failure is not None:
            raise RolloutFailed(
                f"{self._stream.failure} The learner has written a checkpoint."
            ) from self._stream.failure
        learner.save_policy(folder.policy)
        self._evaluate("after RL", recipe.learner.iterations)
        report.write(folder)
        return result_of(recipe, folder, time.monotonic() - began)

    def _on_start(self, version: int) -> None:
        """A resumed learner may stand where the rollouts failed before this policy was evaluated."""
        self._evaluate_if_due(version)

    def _on_iteration(self, metrics: Mapping[str, float]) -> None:
        iteration = int(metrics["iteration"])
        self._ui.iteration(iteration, self._recipe.learner.iterations, metrics)
        self._watch.iteration(metrics)
        self._stream.attempt(lambda: self._evaluate_if_due(iteration))

    def _evaluate_if_due(self, iteration: int) -> None:
        every = self._recipe.eval.every
        if every and iteration % every == 0 and 0 < iteration < self._recipe.learner.iterations:
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


def result_of(recipe: Recipe, folder: RunFolder, wall_s: float) -> TrainResult:
    """What a run that has ended has come to; `wall_s`: what this call of it took."""
    evaluations = [row for row in folder.evaluations() if row.result.split == recipe.eval.splits[0]]
    before, after = (
        EvalResult.pooled(row.result for row in evaluations if row.iteration == iteration)
        for iteration in (evaluations[0].iteration, evaluations[-1].iteration)
    )
    rollout = recipe.rollout
    return TrainResult(
        run=folder.path,
        episodes=recipe.learner.iterations * rollout.num_groups * rollout.group_size,
        success_before=before.success_rate,
        success_after=after.success_rate,
        ci95_after=after.ci95,
        wall_s=wall_s,
    )
