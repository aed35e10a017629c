"""Where errors of a command end: one paragraph on stderr and a documented exit code. `roll` builds on it too.

Errors are known by their class names, so that looking at one imports no library.
"""

from __future__ import annotations

import functools
import os
import select
import sys
import traceback
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Annotated, Any, Generic, TypeVar

import typer

DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
"""Every command takes `debug: DebugOption = False`; the boundary reads it."""

_STDOUT = 1


class DocumentedCode(IntEnum):
    """One number for each kind of ending that a script may want to tell apart, and what it means.

    Every command's codes have the members OK (0), UNEXPECTED (1), USAGE (2, given by the parser of the command line)
    and INTERRUPTED (130).
    """

    meaning: str

    def __new__(cls, value: int, meaning: str) -> DocumentedCode:
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member


CodeT = TypeVar("CodeT", bound=DocumentedCode)


class Boundary(Generic[CodeT]):
    """Turns what a command raises into a message and an exit code.

    Args:
        codes: all exit codes of the program.
        known: exit code by the full name of an error or of a class it derives from.
    """

    def __init__(self, codes: type[CodeT], known: Mapping[str, CodeT]) -> None:
        self.known = dict(known)
        self._unexpected = codes["UNEXPECTED"]
        self._interrupted = codes["INTERRUPTED"]

    def exit_code(self, error: BaseException) -> CodeT:
        """The exit code that the documentation promises for this error."""
        if isinstance(error, KeyboardInterrupt):
            return self._interrupted
        names = (f"{cls.__module__}.{cls.__qualname__}" for cls in type(error).__mro__)
        return next((self.known[name] for name in names if name in self.known), self._unexpected)

    def command(self, function: Callable[..., None]) -> Callable[..., None]:
        """The function as a command of the program."""

        @functools.wraps(function)
        def guarded(**options: Any) -> None:
            try:
                function(**options)
            except (typer.Exit, typer.Abort, typer.BadParameter):
                raise
            except (Exception, KeyboardInterrupt) as error:
                if isinstance(error, BrokenPipeError) and _reader_is_gone():
                    raise typer.Exit(0) from error  # `… | head` has seen enough
                if options.get("debug"):
                    traceback.print_exc()
                code = self.exit_code(error)
                print(self._paragraph(error, code), file=sys.stderr)
                raise typer.Exit(code) from error

        return guarded

    def _paragraph(self, error: BaseException, code: CodeT) -> str:
        text = " ".join(str(error).split())
        if code is self._interrupted:
            return f"Interrupted. {text}".rstrip()
        if code is self._unexpected:
            return (
                f"Unexpected {type(error).__name__}: {text or 'no text'}. This is a defect of rocknroll or of the"
                " machine, not of your input; run the command again with --debug and report the traceback."
            )
        return f"Error: {text or code.meaning}"


def _reader_is_gone() -> bool:
    """Whether stdout is a pipe that nobody reads any more; if so, what is still to be printed goes nowhere."""
    poll = select.poll()
    poll.register(_STDOUT, select.POLLOUT)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
    return True
