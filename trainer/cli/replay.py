"""`roll replay`: stored trajectories again, under another policy or for another learner."""

from __future__ import annotations

import os
import re
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocknroll.sandbox.cli.boundary import DebugOption
from rocknroll.sandbox.cli.output import JsonOption, print_json, stdout_kept_clean
from rocknroll.trainer.cli.arguments import overrides_only
from rocknroll.trainer.cli.process import prepare_process
from rocknroll.trainer.cli.progress import PlainUI, make_ui
from rocknroll.trainer.errors import RecipeError
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.recipe_loader import check_environment, dump_recipe, load_recipe
from rocknroll.trainer.run_folder import RunFolder, new_run, open_run
from rocknroll.trainer.trackers import require_trackers

if TYPE_CHECKING:
    from rocknroll.trainer.offline import OfflineResult


@dataclass(frozen=True)
class _Wanted:
    """Which trajectories of which run, and with which policy."""

    source: RunFolder
    first: int | None
    last: int | None
    policy: Path | None
    checkpoint: int | None


def replay(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="With --train: what to do differently.")
    ] = None,
    iterations: Annotated[
        str | None, typer.Option(metavar="FIRST:LAST", help="Only these, both included; one bound may be left out.")
    ] = None,
    policy: Annotated[Path | None, typer.Option(help="Folder of the policy. Default: the run's own.")] = None,
    checkpoint: Annotated[int | None, typer.Option(metavar="STEP", help="One of the run's checkpoints.")] = None,
    train: Annotated[bool, typer.Option("--train", help="Train on them, offline, into a new run.")] = False,
    name: Annotated[str | None, typer.Option(help="With --train: name of the new run, beside the old one.")] = None,
    force: Annotated[bool, typer.Option("--force", help="With --train: replace an earlier run of that name.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --train: check everything, show the resolved recipe, stop.")
    ] = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Score stored trajectories under a policy, or train from them without playing.

    Without --train it says, for every iteration, how far the policy is from those that played: the mean change of a
    token's log-probability, the KL divergence, the effective sample size, and how many ratios leave the clip. With
    --train the stored batches, in their order, train the policy that the run began with (or --policy).

    Examples:

      roll replay runs/alfworld

      roll replay runs/alfworld --iterations 100: --checkpoint 140

      roll replay runs/alfworld --train learner.objective=cispo --name alfworld-cispo
    """
    if policy is not None and checkpoint is not None:
        raise typer.BadParameter("--policy and --checkpoint both name the policy; give one of them")
    if not train and (overrides or name or force or dry_run):
        raise typer.BadParameter("KEY=VALUE, --name, --force and --dry-run belong to --train")
    if train and name is None:
        raise typer.BadParameter("--train makes a new run: name it by --name")
    wanted = _Wanted(open_run(run), *_bounds(iterations), policy, checkpoint)
    if train:
        _train(wanted, [*overrides_only(overrides or []), f"name={dumps(name)}"], force, dry_run, as_json)
    else:
        _score(wanted, as_json)


def _score(wanted: _Wanted, as_json: bool) -> None:
    from rocknroll.trainer.replay_files import policy_of, stored_files

    recipe = wanted.source.recipe()
    files = stored_files(wanted.source, wanted.first, wanted.last)
    policy = wanted.policy or policy_of(wanted.source, wanted.checkpoint)
    with stdout_kept_clean() if as_json else nullcontext(), make_ui() as ui:
        prepare_process(recipe)
        ui.phase("loading torch and transformers")
        from rocknroll.trainer import replay as scoring
        from rocknroll.trainer.policy import load_policy

        model, _ = load_policy(str(policy), recipe.policy.dtype)
        found = scoring.replay(model, recipe, files, lambda done, total: ui.progress("replaying", done, total))
    if as_json:
        rows: list[dict[str, Any]] = [{"iteration": at, **row.to_json()} for at, row in found.iterations.items()]
        total = found.total.to_json()
        print_json({"run": str(wanted.source.path), "policy": str(policy), "iterations": rows, "total": total})
        return
    from rocknroll.trainer.cli.tables import replay_table

    print(f"{wanted.source.path} under {policy}")
    replay_table(found, sys.stdout)


def _train(wanted: _Wanted, overrides: list[str], force: bool, dry_run: bool, as_json: bool) -> None:
    from rocknroll.trainer.replay_files import stored_files

    source = wanted.source
    files = stored_files(source, wanted.first, wanted.last)
    recipe = _recipe(source, overrides, len(files))
    if (Path(recipe.output_dir) / recipe.name).resolve() == source.path.resolve():
        raise typer.BadParameter(f"--name {recipe.name} is the run whose trajectories are to be trained on")
    folder = new_run(recipe, force=force)
    require_trackers(recipe.report_to)
    check_environment(recipe)
    if dry_run:
        if as_json:
            print_json({"run": str(folder.path), "source": str(source.path), "recipe": recipe.model_dump(mode="json")})
        else:
            print(f"# would train in {folder.path} on {len(files)} batches of {source.path}", file=sys.stderr)
            print(dump_recipe(recipe), end="")
        return
    if force:
        folder.remove()
    with stdout_kept_clean() if as_json else nullcontext(), make_ui() as ui:
        result = _train_now(recipe, folder, wanted, files, ui)
    if as_json:
        print_json(result.to_json())
    else:
        print(f"{result.run}: trained on {result.trajectories} trajectories of {result.source}")
        print(f"evaluate it with: roll eval {result.run}")


def _train_now(recipe: Recipe, folder: RunFolder, wanted: _Wanted, files: list[Path], ui: PlainUI) -> OfflineResult:
    prepare_process(recipe)
    ui.phase("loading torch and transformers")
    from rocknroll.trainer import offline, run
    from rocknroll.trainer.replay_files import policy_of

    policy = wanted.policy
    if policy is None and wanted.checkpoint is not None:
        policy = policy_of(wanted.source, wanted.checkpoint)
    if policy is None:
        _, policy = run.prepare(recipe, ui)
    return offline.train_offline(recipe, folder, wanted.source, files[: recipe.learner.iterations], policy, ui)


def _recipe(source: RunFolder, overrides: list[str], batches: int) -> Recipe:
    """The run's recipe, beside the run, for as many iterations as there are batches, with what the user changes.

    Raises:
        RecipeError: it asks for more iterations than there are batches, or for what needs the policies that played.
    """
    beside = os.path.relpath(source.path.resolve().parent)
    place = [f"output_dir={dumps(beside)}", f"learner.iterations={batches}"]
    recipe = load_recipe([source.recipe_file], [*place, "learner.stream=false", *overrides])
    if recipe.learner.iterations > batches:
        raise RecipeError(
            f"`learner.iterations` is {recipe.learner.iterations}, and there are {batches} stored batches to train on:"
            " lower it, or leave it out to use them all."
        )
    if recipe.learner.mismatch.mode != "off":
        raise RecipeError(
            "`learner.mismatch` compares engine and trainer under the policies that played, and offline those are not"
            " this run's own: set `learner.mismatch.mode` to off."
        )
    return recipe


def _bounds(text: str | None) -> tuple[int | None, int | None]:
    """`3:9`, `3:`, `:9` or `3` as bounds, both included."""
    match = re.fullmatch(r"(\d*)(:?)(\d*)", text or ":")
    if match is None or text == "":
        raise typer.BadParameter(f"--iterations {text}: give FIRST:LAST, for example 3:9, 3: or :9")
    first, colon, last = match.groups()
    if not colon:
        last = first
    bounds = (int(first) if first else None, int(last) if last else None)
    if None not in bounds and bounds[0] > bounds[1]:  # type: ignore[operator]
        raise typer.BadParameter(f"--iterations {text}: the first is behind the last")
    return bounds
