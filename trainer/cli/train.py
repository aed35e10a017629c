"""`roll train`: from a recipe to a trained policy and a report."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from rocknroll.sandbox.cli.boundary import DebugOption
from rocknroll.sandbox.cli.output import JsonOption, print_json, stdout_kept_clean
from rocknroll.trainer.cli.arguments import name_recipes, split_overrides
from rocknroll.trainer.cli.process import prepare_process
from rocknroll.trainer.cli.progress import make_ui
from rocknroll.trainer.errors import RunFolderError
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.recipe_loader import check_environment, dump_recipe, load_recipe
from rocknroll.trainer.resuming import check_settled
from rocknroll.trainer.rollout import forking
from rocknroll.trainer.run_folder import RunFolder, new_run, open_run
from rocknroll.trainer.trackers import require_trackers


@dataclass(frozen=True)
class _Plan:
    """What is to be run, and where."""

    recipe: Recipe
    folder: RunFolder
    resume: bool


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="RECIPE|KEY=VALUE", help="Recipes (files or shipped names), then overrides."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run (and of its folder).")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Go on with an interrupted run.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier run of the same name.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, show the resolved recipe, stop.")
    ] = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Train a policy: evaluate, learn, evaluate again, write a report.

    Examples:

      roll train alfworld

      roll train recipes/alfworld.yaml seed=1 learner.iterations=60 --name longer

      roll train base.yaml my-changes.yaml eval.splits=[seen,unseen]

      roll train --resume runs/alfworld
    """
    plan = _plan(words or [], name, resume, force=force)
    check_environment(plan.recipe)
    require_trackers(plan.recipe.report_to)
    if dry_run:
        _show(plan, as_json)
        return
    if force:
        plan.folder.remove()
    with stdout_kept_clean() if as_json else nullcontext(), make_ui() as ui:
        prepare_process(plan.recipe)
        forking.begin()
        ui.phase("loading torch and transformers")
        try:
            from rocknroll.trainer import run

            result = run.train(plan.recipe, plan.folder, ui, resume=plan.resume)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_how_to_go_on(plan.folder)) from None
    if as_json:
        print_json(result.to_json())
    else:
        from rocknroll.trainer.cli.tables import run_summary

        run_summary(open_run(result.run), sys.stdout)


def _plan(words: list[str], name: str | None, resume: Path | None, *, force: bool) -> _Plan:
    recipes, overrides = split_overrides(words)
    if name is not None:
        overrides.append(f"name={dumps(name)}")
    if resume is None:
        if not recipes:
            raise typer.BadParameter(f"no recipe given. Shipped: {name_recipes()}. For example: roll train alfworld")
        recipe = load_recipe(recipes, overrides)
        return _Plan(recipe, new_run(recipe, force=force), resume=False)
    if name is not None or force:
        raise typer.BadParameter("--resume goes on in the run's own folder; leave out --name and --force")
    folder = open_run(resume)
    if recipes and (differing := _differences(load_recipe(recipes, overrides), folder.recipe())):
        raise RunFolderError(
            f"{folder.path} was started with another recipe than the one given: {', '.join(differing)} differ."
            f" Leave the recipe out to go on with the run's own (`roll train --resume {folder.path}`), or start a new"
            " run with another `--name`."
        )
    recipe = load_recipe([folder.recipe_file], [*overrides, *_own_place(folder)])
    check_settled(folder.recipe(), recipe)
    return _Plan(recipe, folder, resume=True)


def _own_place(folder: RunFolder) -> list[str]:
    """A run goes on where its folder is now, wherever it was started."""
    path = folder.path.resolve()
    return [f"name={dumps(path.name)}", f"output_dir={dumps(str(path.parent))}"]


def _differences(given: Recipe, started: Recipe) -> list[str]:
    ours, theirs = given.model_dump(), started.model_dump()
    return [f"`{key}`" for key in ours if ours[key] != theirs[key] and key not in ("name", "output_dir")]


def _show(plan: _Plan, as_json: bool) -> None:
    if as_json:
        print_json({"run": str(plan.folder.path), "resume": plan.resume, "recipe": plan.recipe.model_dump(mode="json")})
    else:
        print(f"# would {'go on in' if plan.resume else 'train in'} {plan.folder.path}", file=sys.stderr)
        print(dump_recipe(plan.recipe), end="")


def _how_to_go_on(folder: RunFolder) -> str:
    if not folder.exists():
        return "Nothing was written yet; start again with the same command."
    return f"Go on with: roll train --resume {folder.path}"
