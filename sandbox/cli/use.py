"""`rock exec` and `rock cp`: work in one sandbox, under a lease of one's own or of another holder by its token.

An idle sandbox is leased for as long as the command takes, by this process: the lease ends with it. What the sandbox
is afterwards its specification says (`reuse`).
"""

from __future__ import annotations

import contextlib
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocknroll.sandbox.cli.boundary import DebugOption
from rocknroll.sandbox.cli.connect import DryRunOption, SandboxArgument, StateOption, UrlOption, connect
from rocknroll.sandbox.cli.exit_codes import ExitCode
from rocknroll.sandbox.cli.output import JsonOption, print_json

if TYPE_CHECKING:
    from rocknroll.sandbox.client import Client, Lease

TTL_S = 30.0
CHUNK_BYTES = 1 << 20

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
    with _own_failures_apart(), connect(state, url) as client:
        if dry_run:
            row = client.describe(sandbox)
            print(f"would run {command} in {row['id']}, which is {row['state']}")
            return
        data = sys.stdin.buffer.read() if stdin else b""
        with _in_hand(client, sandbox, token, url) as lease:
            done = lease.exec(command, timeout_s, data, cwd, settings)
    if as_json:
        print_json(
            {
                "exit_code": done.exit_code,
                "stdout": done.stdout.decode(errors="replace"),
                "stderr": done.stderr.decode(errors="replace"),
                "stdout_cut_bytes": done.stdout_cut_bytes,
                "stderr_cut_bytes": done.stderr_cut_bytes,
                "timed_out": done.timed_out,
                "wall_s": done.wall_s,
            }
        )
    else:
        sys.stdout.buffer.write(done.stdout)
        sys.stdout.buffer.flush()
        sys.stderr.buffer.write(done.stderr)
        if cut := done.stdout_cut_bytes + done.stderr_cut_bytes:
            print(f"[{cut} bytes in the middle of the output were cut]", file=sys.stderr)
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
    """Copy a file into a sandbox or out of it.

    Examples: `rock cp data.csv box-0:data.csv`, `rock cp box-0:result.json .`
    """
    (from_id, from_path), (to_id, to_path) = _place(source), _place(target)
    if bool(from_id) == bool(to_id):
        raise typer.BadParameter("one of both must be ID:PATH, and the other a path here", param_hint="SOURCE TARGET")
    local = Path(from_path if to_id else to_path)
    if to_id:
        _check_source(local)
        to_path = f"{to_path}{local.name}" if to_path.endswith("/") or not to_path else to_path
    elif local.is_dir():
        local = local / Path(from_path).name
    if dry_run:
        print(f"would copy {source} to {f'{to_id}:{to_path}' if to_id else local}")
        return
    with connect(state, url) as client, _in_hand(client, from_id or to_id, token, url) as lease:
        if to_id:
            with local.open("rb") as file:
                mode = stat.S_IMODE(local.stat().st_mode)
                lease.write(to_path, iter(lambda: file.read(CHUNK_BYTES), b""), mode)
        else:
            _fetch(lease, from_path, local)


def exit_code_of(code: int, timed_out: bool) -> int:
    """What a shell would report: 128 + the signal for a killed command."""
    if timed_out:
        return ExitCode.KILLED
    return 128 - code if code < 0 else code


@contextlib.contextmanager
def _own_failures_apart() -> Iterator[None]:
    """Give what is not the command's own doing a code of its own."""
    from rocknroll.sandbox.errors import SandboxError

    try:
        yield
    except SandboxError as error:
        print(f"Error: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(ExitCode.NOT_RUN) from error


@contextlib.contextmanager
def _in_hand(client: Client, sandbox: str, token: int | None, url: str | None) -> Iterator[Lease]:
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

    if path.is_dir():
        raise FileFailed(
            f"{path} is a folder, and `cp` copies files; send it with `tar c -C {path} . | rock exec -i ID -- tar x`"
        )
    if not path.is_file():
        raise FileFailed(f"{path} is no file here")


def _place(text: str) -> tuple[str, str]:
    """(sandbox or empty, path). A path here that has a colon before any slash is written `./a:b`."""
    head, colon, tail = text.partition(":")
    return (head, tail) if colon and head and "/" not in head else ("", text)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--env")
    return name, value
