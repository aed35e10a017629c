"""Where errors of a command end: one paragraph on stderr and a documented exit code.

Errors are known by their class names, so that looking at one imports no model library.
"""

from __future__ import annotations

import functools
import os
import select
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer

from rocknroll.trainer.cli.exit_codes import ExitCode

KNOWN_ERRORS: dict[str, ExitCode] = {
    "rocknroll.trainer.errors.RecipeError": ExitCode.RECIPE,
    "rocknroll.trainer.errors.RunFolderError": ExitCode.RUN_FOLDER,
    "rocknroll.trainer.storage.StorageError": ExitCode.RUN_FOLDER,
    "rocknroll.trainer.checkpoint.CheckpointError": ExitCode.RUN_FOLDER,
    "rocknroll.trainer.learner.LearnerDiverged": ExitCode.POLICY,
    "rocknroll.trainer.render.PolicyError": ExitCode.POLICY,
    "rocknroll.envs.text.EnvDataError": ExitCode.DATA,
    "rocknroll.trainer.engines.base.EngineError": ExitCode.INFRASTRUCTURE,
    "rocknroll.trainer.rollout.loop.RolloutFailed": ExitCode.INFRASTRUCTURE,
    "rocknroll.sandbox.errors.SandboxError": ExitCode.INFRASTRUCTURE,
}
"""Exit code by the full name of an error or of a class it derives from."""

_STDOUT = 1

DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
"""Every command takes `debug: DebugOption = False`; the boundary reads it."""


def exit_code(error: BaseException) -> ExitCode:
    """The exit code that the documentation promises for this error."""
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    names = (f"{cls.__module__}.{cls.__qualname__}" for cls in type(error).__mro__)
    return next((KNOWN_ERRORS[name] for name in names if name in KNOWN_ERRORS), ExitCode.UNEXPECTED)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Turn what a command raises into a message and an exit code."""

    @functools.wraps(function)
    def guarded(**options: Any) -> None:
        try:
            function(**options)
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except (Exception, KeyboardInterrupt) as error:
            if isinstance(error, BrokenPipeError) and _reader_is_gone():
                raise typer.Exit(ExitCode.OK) from error  # `roll inspect … | head` has seen enough
            if options.get("debug"):
                traceback.print_exc()
            code = exit_code(error)
            print(_paragraph(error, code), file=sys.stderr)
            raise typer.Exit(code) from error

    return guarded


def _reader_is_gone() -> bool:
    """Whether stdout is a pipe that nobody reads any more; if so, what is still to be printed goes nowhere."""
    poll = select.poll()
    poll.register(_STDOUT, select.POLLOUT)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
    return True


def _paragraph(error: BaseException, code: ExitCode) -> str:
    text = " ".join(str(error).split())
    if code is ExitCode.INTERRUPTED:
        return f"Interrupted. {text}".rstrip()
    if code is ExitCode.UNEXPECTED:
        return (
            f"Unexpected {type(error).__name__}: {text or 'no text'}. This is a defect of rocknroll or of the machine,"
            " not of your input; run the command again with --debug and report the traceback."
        )
    return f"Error: {text}"
