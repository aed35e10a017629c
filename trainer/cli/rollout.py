"""`roll rollout`: play an environment without a model."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Annotated

import typer

from rocknroll.sandbox.cli.boundary import DebugOption
from rocknroll.sandbox.cli.output import JsonOption, print_json, stdout_kept_clean
from rocknroll.trainer.cli.arguments import split_overrides
from rocknroll.trainer.cli.process import prepare_process
from rocknroll.trainer.cli.progress import make_ui
from rocknroll.trainer.recipe_loader import check_environment, load_recipe


def rollout(
    words: Annotated[
        list[str], typer.Argument(metavar="RECIPE... [KEY=VALUE...]", help="Recipes that say the environment.")
    ],
    policy: Annotated[str, typer.Option(help="gold, noop, random or script:FILE.")] = "gold",
    episodes: Annotated[int, typer.Option("--episodes", "-n", min=1, help="How many.")] = 16,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", "-c", min=1, help="At once. Default: sandbox.count.")
    ] = None,
    split: Annotated[str, typer.Option(help="train, seen or unseen.")] = "train",
    attempts: Annotated[int, typer.Option(min=1, help="At an episode that infrastructure ends.")] = 3,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Play episodes with a scripted agent: its environment's expert, one that does nothing, chance, or your script.

    A script is a JSON file with a list of actions, or an object with such a list for each task id; any other file has
    one action on each line.

    Examples:

      roll rollout mini-swe --policy gold --episodes 64 --concurrency 8

      roll rollout alfworld --policy random --episodes 32 --json

      roll rollout mini-swe --policy script:actions.json
    """
    from rocknroll.trainer import scripted

    if policy not in scripted.POLICIES and not policy.startswith(scripted.SCRIPT):
        raise typer.BadParameter(
            f"there is no policy {policy!r}: {', '.join(scripted.POLICIES)} or {scripted.SCRIPT}FILE"
        )
    recipes, overrides = split_overrides(words)
    if concurrency is not None:
        overrides.append(f"sandbox.count={concurrency}")
    recipe = load_recipe(recipes, overrides)
    check_environment(recipe)
    prepare_process(recipe)
    with stdout_kept_clean() if as_json else nullcontext(), make_ui() as ui:
        report = asyncio.run(
            scripted.rollout(
                recipe,
                policy,
                split=split,
                episodes=episodes,
                concurrency=recipe.sandbox.count,
                attempts=attempts,
                ui=ui,
            )
        ).as_json()
    if as_json:
        print_json(report)
        return
    rate = "none judged" if report["success_rate"] is None else f"{report['success_rate']:.1%} solved"
    print(f"{report['episodes']} episodes, {rate}, {report['episodes_per_minute']} a minute")
    for name, value in report["measured"].items():
        print(f"{name:<20} {value}")
    for cause, count in report["retried"].items():
        print(f"tried again after {cause}: {count}")
    for task, error in report["lost"].items():
        print(f"lost: {task}: {error}")
