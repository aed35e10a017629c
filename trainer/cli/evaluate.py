"""`roll eval`: success of a run's policy, or of any model, on held-out tasks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from rocknroll.sandbox.cli.boundary import DebugOption
from rocknroll.sandbox.cli.output import JsonOption, print_json, stdout_kept_clean
from rocknroll.trainer.cli.arguments import overrides_only
from rocknroll.trainer.cli.process import prepare_process
from rocknroll.trainer.cli.progress import evaluation_line, make_ui
from rocknroll.trainer.errors import RunFolderError
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.recipe_loader import check_environment, load_recipe
from rocknroll.trainer.results import EvalResult
from rocknroll.trainer.rollout import forking
from rocknroll.trainer.run_folder import RunFolder


def evaluate(
    target: Annotated[str, typer.Argument(metavar="RUN_OR_MODEL", help="A run folder, a model folder or a hub id.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Overrides.")] = None,
    recipe: Annotated[
        list[str] | None,
        typer.Option(help="Recipe that says the environment. Default: the run's own; `alfworld` for a model."),
    ] = None,
    split: Annotated[str | None, typer.Option(help="train, seen or unseen. Default: the recipe's first.")] = None,
    episodes: Annotated[int | None, typer.Option(min=1, help="How many tasks. Default: the recipe's.")] = None,
    domain: Annotated[str | None, typer.Option(metavar="NAME", help="A domain of the recipe. Default: all.")] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Evaluate a run's final policy, or a model, on fixed tasks.

    Examples:

      roll eval runs/alfworld

      roll eval runs/alfworld --split seen --episodes 64 eval.temperature=1.0

      roll eval runs/alfworld-curriculum --domain hard

      roll eval path/to/model --recipe alfworld --json
    """
    settings = _settings(target, recipe or [], overrides_only(overrides or []), split, episodes)
    check_environment(settings)
    _check_domain(domain, settings)
    model, section = _model(target), settings.eval
    with stdout_kept_clean() if as_json else nullcontext(), make_ui() as ui:
        prepare_process(settings)
        forking.begin()
        ui.phase("loading torch and transformers")
        from rocknroll.trainer import run

        results = run.evaluate(
            settings,
            model,
            split=section.splits[0],
            episodes=section.episodes,
            temperature=section.temperature,
            ui=ui,
            domain=domain,
        )
    if as_json:
        print_json(_as_json(results))
        return
    from rocknroll.trainer.cli.tables import kinds_table

    for result in results:
        print(evaluation_line(result))
        kinds_table({"success": result}, sys.stdout)


def _as_json(results: Sequence[EvalResult]) -> dict[str, Any]:
    """One result as it is; those of several domains together, and each beside them."""
    if len(results) == 1:
        return results[0].to_json()
    return {**EvalResult.pooled(results).to_json(), "domains": [result.to_json() for result in results]}


def _check_domain(domain: str | None, recipe: Recipe) -> None:
    if domain is None or domain in recipe.domains:
        return
    known = f"it has {', '.join(recipe.domains)}" if recipe.domains else "it has one environment and no domains"
    raise typer.BadParameter(f"the recipe has no domain `{domain}`; {known}. Leave --domain out to evaluate all of it")


def _settings(target: str, recipes: list[str], overrides: list[str], split: str | None, episodes: int | None) -> Recipe:
    """The recipe of the evaluation: `--split` and `--episodes` are short for overrides."""
    if split is not None:
        overrides.append(f"eval.splits=[{split}]")
    if episodes is not None:
        overrides.append(f"eval.episodes={episodes}")
    if not recipes:
        run = _run_of(Path(target))
        recipes = [str(run.recipe_file)] if run else ["alfworld"]
    return load_recipe(recipes, overrides)


def _run_of(path: Path) -> RunFolder | None:
    """The run that a folder is, or lies in (a checkpoint)."""
    candidates = (RunFolder(folder) for folder in (path, *path.parents))
    return next((run for run in candidates if run.exists()), None)


def _model(target: str) -> Path:
    """The model that is meant: a run's trained policy, else what the caller named."""
    run = RunFolder(Path(target))
    if not run.exists():
        return Path(target)
    if not run.policy.is_dir():
        raise RunFolderError(
            f"{run.path} has no trained policy yet: the run was not finished. Go on with it by"
            f" `roll train --resume {run.path}`, or evaluate one of its checkpoints ({run.checkpoints})."
        )
    return run.policy
