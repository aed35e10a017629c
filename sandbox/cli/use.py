"""`rock exec` and `rock cp`: work in one sandbox, under a lease of one's own or of another holder by its token.

An idle sandbox is leased for as long as the command takes, by this process: the lease ends with it. What the sandbox
is afterwards its specification says (`reuse`).
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocknroll.sandbox.cli.boundary import DebugOption
from rocknroll.sandbox.cli.connect import DryRunOption, SandboxArgument, StateOption, UrlOption, connect
from rocknroll.sandbox.cli.exit_codes import ExitCode
from rocknroll.sandbox.cli.output import JsonOption, print_json

if TYPE_CHECKING:
    from rocknroll.sandbox.client import Client, Lease, RunningCommand
    from rocknroll.sandbox.results import ExecResult

TTL_S = 30.0
CHUNK_BYTES = 1 << 20
FEED_BYTES = 1 << 16
_STDIN = 0

TokenOption = Annotated[
    int | None, typer.Option("--token", min=1, help="Fencing token of the lease on it, when somebody holds it.")
]


def execute(
    sandbox: SandboxArgument,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The command and its arguments.")],
    token: TokenOption = None,
    timeout_s: Annotated[float, typer.Option("--timeout", min=0.001, help="Seconds until it is killed.")] = 60.0,
    cwd: Annotated[str, typer.Option("--cwd", "-w", help="Where to run it.")] = ".",
    variables: Annotated[
        list[str] | None, typer.Option("--env", "-e", metavar="NAME=VALUE", help="A variable; may be repeated.")
    ] = None,
    stdin: Annotated[bool, typer.Option("--stdin", "-i", help="Give it what this command reads on stdin.")] = False,
    state: StateOption = None,
    url: UrlOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Run a command in a sandbox; its output and exit code are passed through.

    Examples: `rock exec box-0 -- ls -la`, `tar c . | rock exec -i box-0 -- tar x`
    """
    settings = dict(_setting(text) for text in variables or [])
    with own_failures_apart(), connect(state, url) as client:
        if dry_run:
            row = client.describe(sandbox)
            print(f"would run {command} in {row['id']}, which is {row['state']}")
            return
        with in_hand(client, sandbox, token, url) as lease:
            if as_json:
                done = lease.exec(command, timeout_s, sys.stdin.buffer.read() if stdin else b"", cwd, settings)
                print_json(_result(done))
            else:
                with lease.stream(command, timeout_s, cwd, settings) as running:
                    done = pass_through(running, stdin)
    if done.timed_out:
        print(f"Killed at its deadline after {done.wall_s:.1f} s.", file=sys.stderr)
    raise typer.Exit(exit_code_of(done.exit_code, done.timed_out))


def copy(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A path here, or ID:PATH in a sandbox.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A path here, or ID:PATH in a sandbox.")],
    token: TokenOption = None,
    state: StateOption = None,
    url: UrlOption = None,
    dry_run: DryRunOption = False,
    debug: DebugOption = False,
) -> None:
    """Copy a file or a folder into a sandbox or out of it.

    Examples: `rock cp data.csv box-0:data.csv`, `rock cp box-0:results/ .`
    """
    (from_id, from_path), (to_id, to_path) = _place(source), _place(target)
    if bool(from_id) == bool(to_id):
        raise typer.BadParameter("one of both must be ID:PATH, and the other a path here", param_hint="SOURCE TARGET")
    local = Path(from_path if to_id else to_path)
    if to_id:
        _check_source(local)
        to_path = f"{to_path}{local.name}" if to_path.endswith("/") or not to_path else to_path
    elif local.is_dir():
        local = local / Path(from_path.rstrip("/")).name
    if dry_run:
        print(f"would copy {source} to {f'{to_id}:{to_path}' if to_id else local}")
        return
    with connect(state, url) as client, in_hand(client, from_id or to_id, token, url) as lease:
        if from_id and lease.stat(from_path).kind == "folder":
            lease.download(from_path, local)
        elif from_id:
            _fetch(lease, from_path, local)
        elif local.is_dir():
            lease.upload(local, to_path)
        else:
            with local.open("rb") as file:
                mode = stat.S_IMODE(local.stat().st_mode)
                lease.write(to_path, iter(lambda: file.read(CHUNK_BYTES), b""), mode)


def pass_through(running: RunningCommand, stdin: bool) -> ExecResult:
    """The command's output to ours and, if asked for, our input to it, as they come."""
    if stdin:
        # A thread that still waits for input at the end is no reason to stay.
        threading.Thread(target=_feed, args=(running,), daemon=True).start()
    else:
        running.write_eof()
    outputs = {"stdout": sys.stdout.buffer, "stderr": sys.stderr.buffer}
    for name, data in running:
        outputs[name].write(data)
        outputs[name].flush()
    return running.result()


def _feed(running: RunningCommand) -> None:
    from rocknroll.sandbox.errors import SandboxError

    with contextlib.suppress(SandboxError):  # whoever reads the output hears of it
        while data := os.read(_STDIN, FEED_BYTES):
            running.write(data)
        running.write_eof()


def _result(done: ExecResult) -> dict[str, Any]:
    return {
        "exit_code": done.exit_code,
        "stdout": done.stdout.decode(errors="replace"),
        "stderr": done.stderr.decode(errors="replace"),
        "stdout_cut_bytes": done.stdout_cut_bytes,
        "stderr_cut_bytes": done.stderr_cut_bytes,
        "timed_out": done.timed_out,
        "wall_s": done.wall_s,
    }


def exit_code_of(code: int, timed_out: bool) -> int:
    """What a shell would report: 128 + the signal for a killed command."""
    if timed_out:
        return ExitCode.KILLED
    return 128 - code if code < 0 else code


@contextlib.contextmanager
def own_failures_apart() -> Iterator[None]:
    """Give what is not the command's own doing a code of its own."""
    from rocknroll.sandbox.errors import SandboxError

    try:
        yield
    except SandboxError as error:
        print(f"Error: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(ExitCode.NOT_RUN) from error


@contextlib.contextmanager
def in_hand(client: Client, sandbox: str, token: int | None, url: str | None) -> Iterator[Lease]:
    """The sandbox under a lease: the one with this token, or one for as long as this lasts."""
    if token is None:
        with client.lease(sandbox_id=sandbox, ttl_s=TTL_S, bind_to_process=url is None) as lease:
            yield lease
        return
    from rocknroll.sandbox.errors import SpecInvalid

    lease = client.held(token)
    if not lease.id.startswith(sandbox):
        raise SpecInvalid(f"the lease with token {token} is on {lease.id}, not on {sandbox}")
    yield lease


def _fetch(lease: Lease, path: str, local: Path) -> None:
    """Whole or not at all."""
    from rocknroll.sandbox.errors import FileFailed

    mode = lease.stat(path).mode
    part = local.with_name(f".{local.name}.part")
    try:
        with part.open("wb") as file:
            for chunk in lease.read_chunks(path):
                file.write(chunk)
        part.chmod(stat.S_IMODE(mode))
        part.replace(local)
    except OSError as error:
        raise FileFailed(f"cannot write {local}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


def _check_source(path: Path) -> None:
    from rocknroll.sandbox.errors import FileFailed

    if not path.is_file() and not path.is_dir():
        raise FileFailed(f"there is no file and no folder {path} here")


def _place(text: str) -> tuple[str, str]:
    """(sandbox or empty, path). A path here that has a colon before any slash is written `./a:b`."""
    head, colon, tail = text.partition(":")
    return (head, tail) if colon and head and "/" not in head else ("", text)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--env")
    return name, value
