"""The commands of `rock`. What a command needs is imported when it runs, so that help answers at once."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Annotated

import typer

import rocknroll
from rocknroll.sandbox.cli import image, look, machine, operate, shell, up, use
from rocknroll.sandbox.cli.exit_codes import boundary

app = typer.Typer(
    help="Sandboxes for agents: isolated, leased with fencing tokens, restarted when they die.\n\n"
    "Start with `rock up -d --wait`, then `rock ps`.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_images = typer.Typer(help="Images of Docker sandboxes: build, list, commit.", no_args_is_help=True)
app.add_typer(_images, name="image")

_COMMANDS: dict[str, Callable[..., None]] = {
    "up": up.up,
    "down": up.down,
    "ps": look.ps,
    "describe": look.describe,
    "logs": look.logs,
    "events": look.events,
    "exec": use.execute,
    "shell": shell.shell,
    "cp": use.copy,
    "restart": operate.restart,
    "remove": operate.remove,
    "scale": operate.scale,
    "gc": operate.gc,
    "validate": operate.validate,
    "doctor": machine.doctor,
    "bench": machine.bench,
    "completion": machine.completion,
}
_FROM_ABOVE = ("rocknroll.dashboard.cli", "rocknroll.dashboard.demo.cli")
"""Modules of higher layers that have commands for `rock`; by name, because nothing here depends on them."""
_IMAGE_COMMANDS: dict[str, Callable[..., None]] = {"build": image.build, "list": image.list_, "commit": image.commit}
for _group, _commands in ((app, _COMMANDS), (_images, _IMAGE_COMMANDS)):
    for _name, _function in _commands.items():
        _group.command(_name)(boundary.command(_function))
for _module in _FROM_ABOVE:
    import_module(_module).register(app)


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
