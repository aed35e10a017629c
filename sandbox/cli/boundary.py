"""Where errors of a command end: one paragraph on stderr and a documented exit code."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer

from rocknroll.sandbox.cli.exit_codes import ExitCode
from rocknroll.sandbox.errors import RuntimeUnavailable, SandboxError, SpecInvalid

CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (KeyboardInterrupt, ExitCode.INTERRUPTED),
    (SpecInvalid, ExitCode.SPEC),
    (RuntimeUnavailable, ExitCode.UNAVAILABLE),
    (SandboxError, ExitCode.SANDBOX),
)
"""The first class that matches decides."""

DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")]


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Turn what a command raises into a message and an exit code."""

    @functools.wraps(function)
    def guarded(**options: Any) -> None:
        try:
            function(**options)
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except (Exception, KeyboardInterrupt) as error:
            if options.get("debug"):
                traceback.print_exc()
            code = next((code for kind, code in CODES if isinstance(error, kind)), ExitCode.UNEXPECTED)
            label = f"Unexpected {type(error).__name__}" if code is ExitCode.UNEXPECTED else "Error"
            print(f"{label}: {' '.join(str(error).split()) or code.meaning}", file=sys.stderr)
            raise typer.Exit(code) from error

    return guarded
