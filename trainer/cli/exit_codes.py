"""What `roll` exits with. `docs/exit-codes.md` says the same; a test compares."""

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
    RECIPE = 3, "a recipe or an override cannot be used"
    DATA = 4, "an environment's data is missing, incomplete or corrupt"
    POLICY = 5, "a model or tokenizer cannot be used, or training diverged"
    RUN_FOLDER = 6, "a run folder is in the way, missing, broken or not resumable"
    INFRASTRUCTURE = 7, "sandboxes or the engine failed too often, or cannot start here"
    INTERRUPTED = 130, "stopped by Ctrl-C; a run can be resumed"
