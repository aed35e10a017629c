"""What `rock` exits with. `docs/sandbox.md` says the same; a test compares."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """One number for each kind of ending that a script may want to tell apart."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> ExitCode:
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    OK = 0, "done"
    UNEXPECTED = 1, "an error nobody foresaw; `--debug` shows the traceback"
    USAGE = 2, "the command line is wrong"
    SPEC = 3, "a specification can never work"
    UNAVAILABLE = 4, "this machine cannot run sandboxes of the asked kind"
    SANDBOX = 5, "a sandbox could not be started, was lost or failed"
    INTERRUPTED = 130, "stopped by Ctrl-C; nothing is left behind"
