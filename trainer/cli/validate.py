"""`roll validate`: play an environment's tasks with its expert, without any model."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated

import typer

from rocknroll.sandbox.cli.boundary import DebugOption
from rocknroll.sandbox.cli.output import JsonOption, print_json, stdout_kept_clean
from rocknroll.trainer.cli.arguments import overrides_only
from rocknroll.trainer.cli.progress import make_ui
from rocknroll.trainer.recipe_loader import check_environment, load_recipe

VALIDATED = ("alfworld",)


def validate(
    environment: Annotated[str, typer.Argument(help="alfworld.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Overrides.")] = None,
    games: Annotated[int, typer.Option(min=1, help="How many games.")] = 120,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Make games, let the expert play them, and let the official loader read them.

    Examples:

      roll validate alfworld

      roll validate alfworld --games 300 env.config.max_receptacles=0 --json
    """
    if environment not in VALIDATED:
        raise typer.BadParameter(f"{environment} cannot be validated; known: {', '.join(VALIDATED)}")
    settings = load_recipe([], [f"env.name={environment}", *overrides_only(overrides or [])])
    check_environment(settings)
    with stdout_kept_clean() if as_json else nullcontext(), make_ui() as ui:
        from rocknroll.envs.alfworld.family import AlfWorldFamily
        from rocknroll.envs.alfworld.validate import validate as play

        config = AlfWorldFamily(settings.env.config).config
        report = play(config, games, lambda done, total: ui.progress("games", done, total))
    if as_json:
        print_json(report.as_json())
        return
    for kind, count in report.by_task.items():
        print(f"{kind:<32} {count.solved:>5} of {count.total} solved")
    print(f"{'all':<32} {report.solved:>5} of {report.total} solved, {report.accepted} accepted by the official loader")
    for game in report.unsolved:
        print(f"unsolved: {game}")
