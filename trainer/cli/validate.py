"""`roll validate`: try an environment's tasks without any model: with its expert, or with patches known to be right."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Annotated

import typer

from rocknroll.sandbox.cli.boundary import DebugOption
from rocknroll.sandbox.cli.output import JsonOption, print_json, stdout_kept_clean
from rocknroll.trainer.cli import swebench
from rocknroll.trainer.cli.arguments import overrides_only
from rocknroll.trainer.cli.progress import make_ui
from rocknroll.trainer.recipe_loader import check_environment, load_recipe

ALFWORLD = "alfworld"


def validate(
    environment: Annotated[
        str, typer.Argument(help="alfworld; or instances of SWE-bench: mini-swe, a file, a folder or a hub id.")
    ],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Overrides (alfworld).")] = None,
    games: Annotated[int, typer.Option(min=1, help="How many games (alfworld).")] = 120,
    runs: Annotated[int, typer.Option(min=1, help="How often the gold patch is graded.")] = 3,
    runtime: swebench.RuntimeOption = None,
    jobs: swebench.JobsOption = None,
    only: swebench.OnlyOption = None,
    results: swebench.ResultsOption = None,
    timeout_s: swebench.TimeoutOption = 1800.0,
    split: swebench.SplitOption = "test",
    pull: swebench.PullOption = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Try an environment's tasks without any model.

    alfworld: make games, let the expert play them, and let the official loader read them. Instances of SWE-bench: grade
    their gold patch several times, an empty one and a corrupt one.

    Examples:

      roll validate alfworld --games 300 env.config.max_receptacles=0 --json

      roll validate mini-swe --runtime docker

      roll validate tasks.jsonl --runs 5 --results validated.jsonl --json
    """
    if environment == ALFWORLD:
        _alfworld(overrides_only(overrides or []), games, as_json)
        return
    if overrides:
        raise typer.BadParameter(f"only alfworld takes overrides, not {environment}")
    instances, wrong = swebench.read(environment, split, only or [])
    from rocknroll.envs.swebench import validate as gradings
    from rocknroll.envs.swebench.campaign import Record

    with stdout_kept_clean() if as_json else nullcontext(), make_ui() as ui:
        report = asyncio.run(
            gradings.validate(
                instances,
                wrong,
                swebench.place(runtime, pull, instances),
                runs=runs,
                parallel=swebench.parallel(jobs),
                record=Record(results),
                timeout_s=timeout_s,
                tell=lambda done, total: ui.progress("gradings", done, total),
            )
        )
    if as_json:
        print_json(report.as_json())
        return
    told = report.as_json()
    print(f"{told['gold_resolved']} of {told['total']} resolved by their gold patch in each of {runs} runs")
    others = f"{told['empty_resolved']} by an empty patch, {told['corrupt_resolved']} by a corrupt one"
    print(f"{others}; {told['flaky']} flaky")
    for name, text in {**told["why"], **told["error_texts"]}.items():
        print(f"{name}: {text}")
    if report.excluded:
        print(f"leave out: env.config.exclude=[{', '.join(report.excluded)}]")


def _alfworld(overrides: list[str], games: int, as_json: bool) -> None:
    settings = load_recipe([], [f"env.name={ALFWORLD}", *overrides])
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
