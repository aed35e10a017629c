"""The commands of `roll`. This module and what it imports stay light: help must be instant."""

from __future__ import annotations

from typing import Annotated

import typer

import rocknroll
from rocknroll.trainer.cli import (
    doctor,
    evaluate,
    generate,
    grade,
    inspect,
    plan,
    recipes,
    replay,
    rollout,
    train,
    validate,
)
from rocknroll.trainer.cli.exit_codes import boundary

app = typer.Typer(
    help="Train LLM agents asynchronously, from a laptop's CPU upward.\n\nStart with `roll train alfworld`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for function, name in (
    (train.train, "train"),
    (evaluate.evaluate, "eval"),
    (validate.validate, "validate"),
    (grade.grade, "grade"),
    (generate.generate, "generate"),
    (rollout.rollout, "rollout"),
    (inspect.inspect, "inspect"),
    (plan.plan, "plan"),
    (replay.replay, "replay"),
    (recipes.recipes, "recipes"),
    (doctor.doctor, "doctor"),
):
    app.command(name)(boundary.command(function))


def _version(wanted: bool) -> None:
    if wanted:
        print(f"rocknroll {rocknroll.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass
