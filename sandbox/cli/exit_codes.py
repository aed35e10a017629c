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
    SERVICE = 6, "no service answers, or it failed"
    TAKEN = 7, "another has it: the state folder, the address, the sandbox"
    NOT_FOUND = 8, "there is no such sandbox or pool, or the id is not unique"
    TIMEOUT = 9, "not done within the time that was given"
    DENIED = 10, "the service wants a token, or one that may do more"
    STORAGE = 11, "the state folder or the record cannot be used: permissions, a full disk, a broken file"
    KILLED = 124, "`exec` and `shell`: the command was killed at its deadline"
    NOT_RUN = 125, "`exec` and `shell`: rock failed, not the command, whose own code is passed through"
    INTERRUPTED = 130, "stopped by Ctrl-C; nothing is left behind"


boundary = Boundary(
    ExitCode,
    {
        "rocknroll.sandbox.errors.SpecInvalid": ExitCode.SPEC,
        "rocknroll.sandbox.errors.RuntimeUnavailable": ExitCode.UNAVAILABLE,
        "rocknroll.sandbox.errors.SandboxError": ExitCode.SANDBOX,
        "rocknroll.sandbox.errors.ServiceUnreachable": ExitCode.SERVICE,
        "rocknroll.sandbox.errors.ServiceFailed": ExitCode.SERVICE,
        "rocknroll.sandbox.errors.StateLocked": ExitCode.TAKEN,
        "rocknroll.sandbox.errors.AddressUnavailable": ExitCode.TAKEN,
        "rocknroll.sandbox.errors.LeaseLost": ExitCode.TAKEN,
        "rocknroll.sandbox.errors.NotFound": ExitCode.NOT_FOUND,
        "rocknroll.sandbox.errors.LeaseTimeout": ExitCode.TIMEOUT,
        "rocknroll.sandbox.errors.RequestTimeout": ExitCode.TIMEOUT,
        "rocknroll.sandbox.errors.Unauthenticated": ExitCode.DENIED,
        "rocknroll.sandbox.errors.Forbidden": ExitCode.DENIED,
        "rocknroll.sandbox.errors.StoreFailed": ExitCode.STORAGE,
        "rocknroll.dashboard.source.SourceRefused": ExitCode.STORAGE,
    },
)
