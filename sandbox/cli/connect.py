"""Where the service is: the options that every command has which talks to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rocknroll.sandbox.client import Client
    from rocknroll.sandbox.state_folder import StateFolder

TOKEN_VARIABLE = "ROCK_TOKEN"
"""The bearer token for `--url`; not an option, for the command lines of processes are public."""

StateOption = Annotated[
    Path | None,
    typer.Option("--state", envvar="ROCK_STATE", help="State folder of the fleet.", show_default=False),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="ROCK_URL",
        help="http(s) URL of a service, instead of the state folder's socket; the token comes from $ROCK_TOKEN.",
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]


def state_folder(state: Path | None) -> StateFolder:
    """The named state folder, else the user's own."""
    from rocknroll.sandbox.state_folder import StateFolder, default_folder

    return StateFolder((state or default_folder()).absolute())


def connect(state: Path | None, url: str | None) -> Client:
    """A client of the service, to be closed."""
    from rocknroll.sandbox.client import Client

    return Client(url or state_folder(state).service(), os.environ.get(TOKEN_VARIABLE) if url else None)


def complete_sandbox(incomplete: str) -> list[str]:
    """Ids for shell completion; none when no service answers."""
    from rocknroll.sandbox.errors import SandboxError

    try:
        with connect(None, os.environ.get("ROCK_URL")) as client:
            return [row["id"] for row in client.snapshot() if row["id"].startswith(incomplete)]
    except SandboxError:
        return []


SandboxArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="A sandbox: its id, or a beginning that no other has.", autocompletion=complete_sandbox
    ),
]
