"""`rock shell`: an interactive shell in a sandbox, on a terminal of the sandbox's own when we have one ourselves."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from rocknroll.sandbox.cli.boundary import DebugOption
from rocknroll.sandbox.cli.connect import DryRunOption, SandboxArgument, StateOption, UrlOption, connect
from rocknroll.sandbox.cli.use import TokenOption, exit_code_of, in_hand, own_failures_apart, pass_through

DAY_S = 86_400.0
_ON_A_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
_SHELL = """
if [ $# = 2 ]; then stty rows "$1" cols "$2"; set -- -i; fi
if command -v bash >/dev/null; then exec bash "$@"; fi
exec sh "$@"
"""


def shell(
    sandbox: SandboxArgument,
    token: TokenOption = None,
    timeout_s: Annotated[float, typer.Option("--timeout", min=0.001, help="Seconds until it is killed.")] = DAY_S,
    cwd: Annotated[str, typer.Option("--cwd", "-w", help="Where to start.")] = ".",
    state: StateOption = None,
    url: UrlOption = None,
    dry_run: DryRunOption = False,
    debug: DebugOption = False,
) -> None:
    """Open a shell in a sandbox: bash, or sh where there is none. Its exit code is passed through.

    Without a terminal it reads commands from stdin: `echo make | rock shell box-0`
    """
    with own_failures_apart(), connect(state, url) as client:
        if dry_run:
            row = client.describe(sandbox)
            print(f"would open a shell in {row['id']}, which is {row['state']}")
            return
        with in_hand(client, sandbox, token, url) as lease:
            terminal = sys.stdin.isatty() and sys.stdout.isatty()
            command = ["sh", "-c", _SHELL, "shell"]
            if terminal:
                columns, lines = os.get_terminal_size()
                command = [*lease.python, "-c", _ON_A_TERMINAL, *command, str(lines), str(columns)]
            variables = {"TERM": os.environ.get("TERM", "dumb")} if terminal else {}
            with (
                _keys_as_they_come() if terminal else contextlib.nullcontext(),
                lease.stream(command, timeout_s, cwd, variables) as running,
            ):
                done = pass_through(running, stdin=True)
    raise typer.Exit(exit_code_of(done.exit_code, done.timed_out))


@contextlib.contextmanager
def _keys_as_they_come() -> Iterator[None]:
    """Leave the meaning of keys, Ctrl-C included, to the terminal in the sandbox."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setraw(sys.stdin, termios.TCSADRAIN)  # what was typed ahead is kept
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
