"""`rock doctor`, `bench` and `completion`: this machine and this shell."""

from __future__ import annotations

from typing import Annotated, Literal, cast

import typer

from rocknroll.sandbox.cli.boundary import DebugOption
from rocknroll.sandbox.cli.output import JsonOption, print_json

SHELLS = ("bash", "zsh", "fish")
RuntimeOption = Annotated[str, typer.Option("--runtime", help="Which runtime: process or docker.")]


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


def bench(
    runtime: RuntimeOption = "process",
    image: Annotated[str, typer.Option("--image", help="Docker's image; default: what `rock image build` makes.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="A few samples only.")] = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Time starts, leases, commands, pings, files and recovery, in milliseconds; docker beside raw Docker.

    Example: `rock bench --runtime docker --quick --json`
    """
    import asyncio

    from rocknroll.sandbox.bench import measure
    from rocknroll.sandbox.spec import DEFAULT_IMAGE

    if runtime not in ("process", "docker"):
        raise typer.BadParameter(f"there is no runtime {runtime!r}; try process or docker", param_hint="--runtime")
    result = asyncio.run(measure(cast(Literal["process", "docker"], runtime), quick, image or DEFAULT_IMAGE))
    if as_json:
        print_json(result)
        return
    print(f"{'':14}{'p50 ms':>10}{'p95 ms':>10}{'samples':>10}")
    for name, figure in result["figures"].items():
        print(f"{name:14}{figure['p50']:10.2f}{figure['p95']:10.2f}{figure['samples']:10d}")


def completion(shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]) -> None:
    """Print the completion script of a shell.

    Example: `rock completion bash >> ~/.bashrc`
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    if shell not in SHELLS:
        raise typer.BadParameter(f"{shell!r} is none of {', '.join(SHELLS)}", param_hint="SHELL")
    print(get_completion_script(prog_name="rock", complete_var="_ROCK_COMPLETE", shell=shell))
