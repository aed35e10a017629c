"""The commands of `rock`. What a command needs is imported when it runs, so that help answers at once."""

from __future__ import annotations

from typing import Annotated, cast

import typer

from rocknroll.sandbox.cli.boundary import DebugOption
from rocknroll.sandbox.cli.exit_codes import boundary
from rocknroll.sandbox.cli.output import JsonOption, print_json

app = typer.Typer(
    help="Sandboxes for agents: isolated, leased with fencing tokens, restarted when they die.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)

RuntimeOption = Annotated[str, typer.Option("--runtime", help="Which runtime: process.")]


@app.callback()
def rock() -> None:
    """Keeps `rock` a group of commands."""


@app.command()
@boundary.command
def doctor(as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """Say what sandboxes get on this machine, what is missing, and the one command that adds it."""
    import asyncio

    from rocknroll.sandbox.doctor import examine

    report = asyncio.run(examine())
    if as_json:
        print_json(report)
        return
    for check in report["checks"]:
        print(f"{'ok' if check['ok'] else '!!'}  {check['name']}: {check['found']}")
        if check["remedy"]:
            print(f"      {check['remedy']}")


@app.command()
@boundary.command
def bench(
    runtime: RuntimeOption = "process",
    quick: Annotated[bool, typer.Option("--quick", help="A few samples only.")] = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Time starts, leases, commands, pings, files and recovery, in milliseconds."""
    import asyncio

    from rocknroll.sandbox.bench import RuntimeName, measure

    if runtime not in ("process", "docker"):
        raise typer.BadParameter(f"there is no runtime {runtime!r}; try process or docker", param_hint="--runtime")
    result = asyncio.run(measure(cast(RuntimeName, runtime), quick))
    if as_json:
        print_json(result)
        return
    print(f"{'':14}{'p50 ms':>10}{'p95 ms':>10}{'samples':>10}")
    for name, figure in result["figures"].items():
        print(f"{name:14}{figure['p50']:10.2f}{figure['p95']:10.2f}{figure['samples']:10d}")
