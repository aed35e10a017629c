"""What `rock` exits with, and which error with what. `docs/sandbox.md` says the same; a test compares."""

from __future__ import annotations

from rocknroll.sandbox.cli.boundary import Boundary, DocumentedCode


class ExitCode(DocumentedCode):
    """The exit codes of `rock`."""

    OK = 0, "done"
    UNEXPECTED = 1, "an error nobody foresaw; `--debug` shows the traceback"
    USAGE = 2, "the command line is wrong"
    SPEC = 3, "a specification can never work"
    UNAVAILABLE = 4, "this machine cannot run sandboxes of the asked kind"
    SANDBOX = 5, "a sandbox could not be started, was lost or failed"
    INTERRUPTED = 130, "stopped by Ctrl-C; nothing is left behind"


boundary = Boundary(
    ExitCode,
    {
        "rocknroll.sandbox.errors.SpecInvalid": ExitCode.SPEC,
        "rocknroll.sandbox.errors.RuntimeUnavailable": ExitCode.UNAVAILABLE,
        "rocknroll.sandbox.errors.SandboxError": ExitCode.SANDBOX,
    },
)
