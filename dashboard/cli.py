"""The commands that the dashboard adds to `rock`. Textual and the rest are imported when one of them runs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocknroll.sandbox.cli.boundary import DebugOption
from rocknroll.sandbox.cli.connect import TOKEN_VARIABLE, StateOption, UrlOption, state_folder
from rocknroll.sandbox.cli.exit_codes import ExitCode, boundary
from rocknroll.sandbox.cli.output import JsonOption, print_json

if TYPE_CHECKING:
    from rocknroll.dashboard.snapshot import Snapshot
    from rocknroll.dashboard.source import Source

RunOption = Annotated[
    Path | None, typer.Option("--run", help="Folder of a run of `roll train`, live or over.", metavar="DIR")
]
OnceOption = Annotated[bool, typer.Option("--once", help="Print one frame as text and end.")]
AsciiOption = Annotated[bool, typer.Option("--ascii", help="Draw with ASCII characters only.")]
ReadOnlyOption = Annotated[bool, typer.Option("--readonly", help="Only look: nothing can be changed from here.")]
ThemeOption = Annotated[
    str | None, typer.Option("--theme", help="One of Textual's themes, e.g. nord or textual-light.")
]
IntervalOption = Annotated[float, typer.Option("--interval", min=0.1, help="Seconds between two refreshes.")]
WebOption = Annotated[
    bool, typer.Option("--web", help="Show it in a browser of this machine: prints a URL that holds a fresh token.")
]
PortOption = Annotated[
    int, typer.Option("--port", min=0, max=65535, help="Port for --web; 0: one that is free.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("top")(boundary.command(top))


def top(
    run: RunOption = None,
    once: OnceOption = False,
    as_json: JsonOption = False,
    web: WebOption = False,
    port: PortOption = 0,
    readonly: ReadOnlyOption = False,
    ascii_only: AsciiOption = False,
    theme: ThemeOption = None,
    interval_s: IntervalOption = 1.0,
    state: StateOption = None,
    url: UrlOption = None,
    debug: DebugOption = False,
) -> None:
    """Watch fleet and training: is all well, and if not, why and where. `?` shows the keys.

    Examples: `rock top`, `rock top --run runs/alfworld`, `rock top --once --json`
    """
    check_once(once, as_json, web)
    if web:
        looked_at = ["--run", str(run.absolute())] if run is not None else []
        looked_at += ["--url", url] if url else ["--state", str(state_folder(state).path)]
        show_in_browser(["top", *looked_at], port, readonly, ascii_only, theme, interval_s)
        return
    show(source_of(run, state, url), once, as_json, readonly, ascii_only, theme, interval_s)


def check_once(once: bool, as_json: bool, web: bool) -> None:
    """Refuse options that do not go together."""
    if as_json and not once:
        raise typer.BadParameter("--json needs --once: the application has no end at which it could print anything")
    if web and once:
        raise typer.BadParameter("--web shows the application in a browser, --once prints a frame here: choose one")


def show_in_browser(
    command: list[str], port: int, readonly: bool, ascii_only: bool, theme: str | None, interval_s: float
) -> None:
    """Serve the application of a command of `rock` to browsers of this machine, until Ctrl-C."""
    from rocknroll.dashboard.web import serve

    options = ["--interval", str(interval_s), *(["--theme", theme] if theme else [])]
    options += [*(["--readonly"] if readonly else []), *(["--ascii"] if ascii_only else [])]
    serve((*command, *options), port)


def show(
    source: Source, once: bool, as_json: bool, readonly: bool, ascii_only: bool, theme: str | None, interval_s: float
) -> None:
    """One frame of a source, or the application on it until it is left."""
    if once:
        _print_frame(source, as_json, ascii_only)
        return
    from rocknroll.dashboard.app import run_dashboard
    from rocknroll.dashboard.sources import ReadOnly

    run_dashboard(ReadOnly(source) if readonly else source, ascii_only=ascii_only, theme=theme, interval_s=interval_s)


def source_of(run: Path | None, state: Path | None, url: str | None) -> Source:
    """The fleet that the options name, the run, or both.

    Raises:
        NotFound: there is no such run.
    """
    from rocknroll.dashboard.fleet_source import FleetSource
    from rocknroll.sandbox.errors import NotFound

    address = url or state_folder(state).service()
    where = ("--url", url) if url else ("--state", str(state_folder(state).path))
    fleet = FleetSource(address, os.environ.get(TOKEN_VARIABLE) if url else None, where)
    if run is None:
        return fleet
    from rocknroll.dashboard.run_source import RunSource
    from rocknroll.dashboard.sources import FleetAndRun
    from rocknroll.trainer.errors import RunFolderError

    try:
        return FleetAndRun(fleet, RunSource(run), asked=bool(url or state))
    except RunFolderError as error:
        raise NotFound(str(error)) from error


def _print_frame(source: Source, as_json: bool, ascii_only: bool) -> None:
    import asyncio

    from rocknroll.dashboard import frame
    from rocknroll.dashboard.ascii import to_ascii

    seen = asyncio.run(_look_once(source))
    if as_json:
        print_json(frame.as_json(seen))
    else:
        text = frame.as_text(seen)
        print(to_ascii(text) if ascii_only else text)
    if seen.fleet is None and seen.run is None:
        raise typer.Exit(ExitCode.SERVICE)
    if frame.is_down(seen):
        raise typer.Exit(ExitCode.SANDBOX)


async def _look_once(source: Source) -> Snapshot:
    from rocknroll.dashboard.snapshot import Snapshot
    from rocknroll.dashboard.source import SourceAway, SourceRefused
    from rocknroll.sandbox.errors import SandboxError

    try:
        return await source.snapshot()
    except SourceAway as away:
        return Snapshot(time.time(), away=str(away))
    except SourceRefused as refused:
        if isinstance(refused.__cause__, SandboxError):
            raise refused.__cause__ from None  # its exit code says more: a token is needed, say
        raise
    finally:
        await source.close()
