"""`rock restart`, `remove`, `scale`, `gc` and `validate`: what an operator does now and then."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rocknroll.sandbox.cli.boundary import DebugOption
from rocknroll.sandbox.cli.connect import DryRunOption, StateOption, UrlOption, complete_sandbox, connect, state_folder
from rocknroll.sandbox.cli.output import JsonOption, print_json


def restart(
    sandboxes: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Sandboxes.", autocompletion=complete_sandbox)
    ],
    state: StateOption = None,
    url: UrlOption = None,
    dry_run: DryRunOption = False,
    debug: DebugOption = False,
) -> None:
    """Replace sandboxes by fresh ones, out of quarantine if need be. A lease on one is lost."""
    with connect(state, url) as client:
        for sandbox in sandboxes:
            row = client.describe(sandbox)
            held = f", held by {row['lease']['owner']}" if row["lease"] else ""
            if dry_run:
                print(f"would restart {row['id']}, which is {row['state']}{held}")
            else:
                print(f"restarting {client.restart(row['id'])}{held}", file=sys.stderr)


def remove(
    sandboxes: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Sandboxes.", autocompletion=complete_sandbox)
    ],
    state: StateOption = None,
    url: UrlOption = None,
    dry_run: DryRunOption = False,
    debug: DebugOption = False,
) -> None:
    """Take sandboxes out of service: they end, and their places stay empty until `rock restart`. Leases are lost."""
    with connect(state, url) as client:
        for sandbox in sandboxes:
            row = client.describe(sandbox)
            held = f", held by {row['lease']['owner']}" if row["lease"] else ""
            if dry_run:
                print(f"would remove {row['id']}, which is {row['state']}{held}")
            else:
                print(f"removed {client.remove(row['id'])}{held}; `rock restart` brings it back", file=sys.stderr)


def scale(
    pool: Annotated[str, typer.Argument(metavar="POOL", help="A pool.")],
    size: Annotated[int, typer.Argument(metavar="SIZE", min=1, help="Sandboxes at most.")],
    ready: Annotated[
        int | None, typer.Option("--ready", min=0, help="Keep this many READY beyond the leased ones.")
    ] = None,
    state: StateOption = None,
    url: UrlOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Give a pool another size. Sandboxes that are too many go when nobody holds them."""
    from rocknroll.sandbox.errors import NotFound

    with connect(state, url) as client:
        pools = {row["name"]: row for row in client.pools()}
        if pool not in pools:
            raise NotFound(f"there is no pool {pool!r}; there are: {', '.join(pools)}")
        if dry_run:
            print(f"would scale {pool} from {pools[pool]['size']} to {size} sandboxes")
            return
        row = client.scale(pool, size, ready)
    if as_json:
        print_json(row)
    else:
        print(f"{pool} has {row['size']} sandboxes at most", file=sys.stderr)


def gc(
    running: Annotated[
        bool,
        typer.Option("--running", help="Also containers that still run, which a manager that comes back would adopt."),
    ] = False,
    state: StateOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Remove what fleets left that died without a successor. What belongs to a living process stays.

    Looks at Docker's containers of all fleets, and at the state folder if it has no manager. Containers without a
    manager end by themselves after a minute; until then one that comes back goes on with them.
    """
    from rocknroll.sandbox.leftovers import docker_leftovers, folder_leftovers, remove

    folder = state_folder(state)
    containers, unreachable = docker_leftovers(running)
    files = folder_leftovers(folder)
    if not dry_run:
        remove(folder, containers, files)
    result: dict[str, Any] = {
        "removed": not dry_run,
        "containers": [each.container for each in containers],
        "files": [str(path) for path in files],
        "docker": unreachable or "ok",
    }
    if as_json:
        print_json(result)
        return
    verb = "would remove" if dry_run else "removed"
    for each in containers:
        print(
            f"{verb} container {each.container} ({each.state}) of fleet {each.fleet}, whose owner {each.owner} is dead"
        )
    for path in files:
        print(f"{verb} {path}")
    if unreachable:
        print(f"Docker was not looked at: {unreachable}", file=sys.stderr)
    if not containers and not files:
        print("nothing was left behind", file=sys.stderr)


def validate(
    file: Annotated[Path, typer.Option("--file", "-f", help="Fleet file (YAML).", metavar="FILE")] = Path("fleet.yaml"),
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Check a fleet file without starting anything."""
    import os

    from rocknroll.sandbox.fleetfile import load_fleet_file
    from rocknroll.sandbox.service.access import load_tokens

    fleet = load_fleet_file(file)
    load_tokens(fleet.listen.tokens, os.environ)
    if as_json:
        print_json(fleet.model_dump(mode="json"))
        return
    for name, pool in fleet.pools.items():
        kind = " ".join(filter(None, (pool.runtime, pool.image)))
        print(f"{name}: {pool.size} × {kind}, spec {pool.spec.fingerprint}")
