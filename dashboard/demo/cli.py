"""`rock demo`: the dashboard on a fleet that is made up and a run that was recorded."""

from __future__ import annotations

from typing import Annotated

import typer

from rocknroll.dashboard.cli import (
    AsciiOption,
    IntervalOption,
    OnceOption,
    PortOption,
    ReadOnlyOption,
    ThemeOption,
    WebOption,
    check_once,
    show,
    show_in_browser,
)
from rocknroll.sandbox.cli.boundary import DebugOption
from rocknroll.sandbox.cli.exit_codes import boundary
from rocknroll.sandbox.cli.output import JsonOption

SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Another made-up fleet.")]


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("demo")(boundary.command(demo))


def demo(
    once: OnceOption = False,
    as_json: JsonOption = False,
    web: WebOption = False,
    port: PortOption = 0,
    readonly: ReadOnlyOption = False,
    ascii_only: AsciiOption = False,
    theme: ThemeOption = None,
    interval_s: IntervalOption = 1.0,
    seed: SeedOption = 0,
    debug: DebugOption = False,
) -> None:
    """Show the dashboard of `rock top` without a fleet: its sandboxes are made up, its run was recorded.

    Examples: `rock demo`, `rock demo --once`, `rock demo --web`
    """
    check_once(once, as_json, web)
    if web:
        show_in_browser(["demo", "--seed", str(seed)], port, readonly, ascii_only, theme, interval_s)
        return
    from rocknroll.dashboard.demo.source import DemoSource

    show(DemoSource(seed), once, as_json, readonly, ascii_only, theme, interval_s)
