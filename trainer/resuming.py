"""What a run's folder says about going on with it."""

from __future__ import annotations

from itertools import product

from rocknroll.trainer.errors import RunFolderError
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.run_folder import RunFolder

SETTLED = ("seed", "env", "domains", "policy", "warmstart", "rollout")
"""Sections that a run keeps: what was finished, and the order of tasks, are theirs."""
FREE = ("episode_timeout_s", "infra_retries", "max_infra_error_rate", "in_flight", "prompt_replication")
"""What of `rollout` may change all the same."""


def check_settled(started: Recipe, resumed: Recipe) -> None:
    """Make sure that an override leaves alone what a run cannot change on its way.

    Raises:
        RunFolderError: it does not.
    """
    ours, theirs = resumed.model_dump(), started.model_dump()
    for settings in (ours, theirs):
        settings["rollout"] = {key: value for key, value in settings["rollout"].items() if key not in FREE}
    if changed := [f"`{key}`" for key in SETTLED if ours[key] != theirs[key]]:
        raise RunFolderError(
            f"A run keeps the {', '.join(changed)} that it was started with, because trajectories that wait to be"
            " trained on and the order of tasks depend on it. Leave that override out, or start a new run with another"
            " `--name`."
        )


def has_checkpoint(folder: RunFolder) -> bool:
    """Whether the learner of this run ever wrote a checkpoint."""
    return any(folder.checkpoints.glob("checkpoint-*"))


def check_resumable(folder: RunFolder) -> None:
    """Make sure that the run can be gone on with.

    Raises:
        RunFolderError: it cannot.
    """
    if folder.replayed_from.is_file():
        raise RunFolderError(
            f"{folder.path} was trained offline, from the trajectories of another run, so there is nothing to play."
            f" Begin it anew with `roll replay ... --train --name {folder.path.name} --force`."
        )
    if has_checkpoint(folder) and not folder.ledger.is_file():
        raise RunFolderError(
            f"{folder.path} has checkpoints and no ledger ({folder.ledger.name}), so nobody knows which trajectories it"
            " has trained on: it was made by an earlier version, or the file was removed. Evaluate its checkpoints with"
            " `roll eval`, or start the run anew under another name."
        )


def has_ended(recipe: Recipe, folder: RunFolder) -> bool:
    """Whether the run has done everything that the recipe asks for."""
    iterations = recipe.learner.iterations
    last = [row.result for row in folder.evaluations() if row.iteration >= iterations]
    evaluated = {(result.domain, result.split) for result in last}
    return (
        folder.policy.is_dir()
        and folder.report.is_file()
        and len(folder.metrics()) >= iterations
        and evaluated >= set(product(recipe.domains or [""], recipe.eval.splits))
    )
