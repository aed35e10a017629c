"""`rock ps`, `describe`, `events` and `logs`: commands that change nothing, and renew nothing."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer

from rocknroll.sandbox.cli.boundary import DebugOption
from rocknroll.sandbox.cli.connect import (
    SandboxArgument,
    StateOption,
    UrlOption,
    complete_sandbox,
    connect,
    state_folder,
)
from rocknroll.sandbox.cli.output import JsonOption, print_json, printable

POLL_S = 0.25
"""Between two looks at something that has no stream."""
ERROR_CHARS = 60

FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="Go on as it happens, until Ctrl-C.")]


def ps(
    pool: Annotated[str | None, typer.Option("--pool", help="Of this pool only.")] = None,
    state: StateOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List the sandboxes: state, holder, restarts, last error."""
    with connect(state, url) as client:
        rows = [row for row in client.snapshot() if pool in (None, row["pool"])]
    if as_json:
        print_json({"sandboxes": rows})
        return
    print(f"{'ID':20}{'STATE':13}{'RUNTIME':9}{'NODE':20}{'RESTARTS':>8}  {'LEASE':30}LAST ERROR")
    for row in rows:
        print(
            f"{row['id']:20}{row['state']:13}{row['runtime']:9}{printable(row['node'] or '-'):20}{row['restarts']:8d}  "
            f"{_lease(row['lease']):30}"
            f"{_short(row['last_error'] or '')}"
        )


def describe(
    sandbox: SandboxArgument,
    state: StateOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Say all that is known of a sandbox: its specification, newest events and last output."""
    with connect(state, url) as client:
        described = client.describe(sandbox)
    if as_json:
        print_json(described)
        return
    for key in ("id", "pool", "state", "runtime", "image", "node", "pid", "restarts", "last_error"):
        print(f"{key:12}{printable(str(described[key] if described[key] is not None else '-'))}")
    print(f"{'lease':12}{_lease(described['lease'])}")
    print("spec")
    for key, value in described["spec"].items():
        print(f"  {key:18}{printable(str(value))}")
    print("events")
    for event in described["events"]:
        print(f"  {_event_line(event)}")
    if described["output"]:
        print("last output")
        for line in described["output"].splitlines():
            print(f"  {printable(line)}")


def events(
    follow: FollowOption = False,
    after: Annotated[int | None, typer.Option("--after", min=0, help="Only those after this number.")] = None,
    last: Annotated[int, typer.Option("--last", "-n", min=1, max=10_000, help="How many of the newest.")] = 50,
    state: StateOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Say what happened. With --follow and --json, one JSON object a line."""
    with connect(state, url) as client:
        found = client.events(limit=last, newest=True) if after is None else client.events(after, limit=10_000)
        rows = [asdict(event) for event in found]
        if not follow and as_json:
            print_json({"events": rows})
            return
        for row in rows:
            print_json(row) if as_json else print(_event_line(row), flush=True)
        if follow:
            for event in client.follow(rows[-1]["seq"] if rows else after or 0):
                print_json(asdict(event)) if as_json else print(_event_line(asdict(event)), flush=True)


def logs(
    sandbox: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="A sandbox; without one, the manager.", autocompletion=complete_sandbox),
    ] = None,
    follow: FollowOption = False,
    state: StateOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Print what the processes of a sandbox printed last (4 KiB), or the log of a detached manager."""
    if sandbox is None:
        _manager_log(state_folder(state).log, follow, as_json)
        return
    with connect(state, url) as client:
        output = client.describe(sandbox)["output"]
        if as_json:
            print_json({"output": output})
            return
        _write(output)
        while follow:
            time.sleep(POLL_S)
            newer = client.describe(sandbox)["output"]
            _write(_what_is_new(output, newer))
            output = newer


def _manager_log(path: Any, follow: bool, as_json: bool) -> None:
    from rocknroll.sandbox.errors import NotFound

    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read()
            if as_json:
                print_json({"output": text})
                return
            _write(text)
            while follow:
                time.sleep(POLL_S)
                _write(file.read())
    except FileNotFoundError:
        raise NotFound(f"there is no log at {path}: no manager was detached (`rock up -d`) there") from None


def _what_is_new(before: str, now: str) -> str:
    """The part of a tail that an earlier tail did not have; all of it when they do not overlap."""
    for start in range(len(before)):
        if now.startswith(before[start:]):
            return now[len(before) - start :]
    return now


def _write(text: str) -> None:
    sys.stdout.write("".join(f"{printable(line)}\n" for line in text.splitlines()))
    sys.stdout.flush()


def _lease(lease: dict[str, Any] | None) -> str:
    if lease is None:
        return "-"
    return f"{printable(lease['owner'])} #{lease['token']} {max(0.0, lease['deadline'] - time.time()):.0f}s"


def _short(text: str) -> str:
    line = " ".join(printable(text).split())
    return line if len(line) <= ERROR_CHARS else line[: ERROR_CHARS - 1] + "…"


def _event_line(event: dict[str, Any]) -> str:
    at = datetime.fromtimestamp(event["time"]).strftime("%Y-%m-%d %H:%M:%S")
    return f"{event['seq']:6d}  {at}  {event['sandbox']:20}{event['kind']:18}{_one_line(event['detail'])}".rstrip()


def _one_line(text: str) -> str:
    return " ".join(printable(text).split())
