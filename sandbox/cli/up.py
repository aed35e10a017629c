"""`rock up` and `rock down`: a manager in the foreground or detached, and its end with everything it started."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocknroll.sandbox.cli.boundary import DebugOption
from rocknroll.sandbox.cli.connect import DryRunOption, StateOption, connect, state_folder
from rocknroll.sandbox.cli.exit_codes import ExitCode
from rocknroll.sandbox.cli.output import JsonOption, print_json

if TYPE_CHECKING:
    from rocknroll.sandbox.fleetfile import FleetFile
    from rocknroll.sandbox.site import Site
    from rocknroll.sandbox.state_folder import StateFolder

POLL_S = 0.02
START_S = 30.0
"""For a detached manager to answer at all; READY sandboxes are another matter (`--timeout`)."""

FileOption = Annotated[
    Path | None,
    typer.Option("--file", "-f", help="Fleet file (YAML); without one, a few bare process sandboxes.", metavar="FILE"),
]


def up(
    file: FileOption = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Serve in the background; see `rock logs`.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return once every wanted sandbox is READY; implies --detach.")
    ] = False,
    timeout_s: Annotated[float, typer.Option("--timeout", min=0, help="Seconds for --wait.")] = 300.0,
    state: StateOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Start a fleet and its service. In the foreground Ctrl-C ends everything.

    Examples: `rock up -d --wait`, `rock up -f fleet.yaml`
    """
    from rocknroll.sandbox.fleetfile import default_fleet, load_fleet_file
    from rocknroll.sandbox.state_folder import StateFolder

    fleet = load_fleet_file(file) if file is not None else default_fleet()
    folder = StateFolder(fleet.state) if state is None and fleet.state is not None else state_folder(state)
    if dry_run:
        _say_plan(fleet, folder, as_json)
    elif detach or wait:
        _detach(file, folder, wait, timeout_s, as_json)
    else:
        _serve(fleet, folder)


def down(
    state: StateOption = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0, help="Seconds until a manager that does not end is killed.")
    ] = 60.0,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """End the fleet of a state folder: its manager, its sandboxes, its leases. Only the record stays.

    Also cleans up after a manager that was killed.
    """
    folder = state_folder(state)
    pid = folder.manager()
    if dry_run:
        _say_end(folder, pid, as_json)
        return
    killed = pid is not None and _end(folder, pid, timeout_s)
    import asyncio

    from rocknroll.sandbox.takedown import take_down

    ended = asyncio.run(take_down(folder))
    result = {"manager": pid, "killed": killed, "instances": ended.instances, "leases": ended.leases}
    if as_json:
        print_json(result)
        return
    print(f"ended the manager with pid {pid}" if pid is not None else "no manager was running", file=sys.stderr)
    if ended.instances or ended.leases:
        said = f"also ended {len(ended.instances)} sandboxes and {len(ended.leases)} leases that were left behind"
        print(said, file=sys.stderr)


def _serve(fleet: FleetFile, folder: StateFolder) -> None:
    """Serve until a signal. Ctrl-C ends with its own code, SIGTERM (which `rock down` sends) is success."""
    import asyncio
    import logging

    from rocknroll.sandbox.server import serve

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    caught: list[int] = []

    async def run() -> None:
        stop = asyncio.Event()

        def end(number: int) -> None:
            caught.append(number)
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, end, number)
        await serve(fleet, folder, stop, began=began)

    def began(site: Site) -> None:
        pools = ", ".join(f"{pool.size} × {name} ({pool.runtime})" for name, pool in fleet.pools.items())
        where = [str(fleet.listen.unix or folder.socket), *([fleet.listen.tcp] if fleet.listen.tcp else [])]
        print(f"pid {os.getpid()} keeps {pools}; serving at {' and '.join(where)}", file=sys.stderr, flush=True)

    asyncio.run(run())
    if signal.SIGINT in caught:
        raise KeyboardInterrupt("Everything that was started has ended.")


def _detach(file: Path | None, folder: StateFolder, wait: bool, timeout_s: float, as_json: bool) -> None:
    from rocknroll.sandbox.errors import SandboxError, StateLocked

    if (running := folder.manager()) is not None:
        raise StateLocked(
            f"the manager with pid {running} works on {folder.path} already. End it with `rock down`, or choose another"
            " folder with `--state`."
        )
    folder.prepare()
    command = [sys.executable, "-m", "rocknroll.sandbox.cli", "up", "--state", str(folder.path)]
    command += ["--file", str(file.absolute())] if file is not None else []
    log = os.open(folder.log, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
    said = os.fstat(log).st_size
    manager = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=_environment()
    )
    os.close(log)
    try:
        _await_answer(manager, folder, said)
        if wait:
            with connect(folder.path, None) as client:
                client.wait_ready(timeout_s)
    except SandboxError:
        if manager.poll() is None:
            print(
                f"the manager with pid {manager.pid} goes on; `rock ps` and `rock logs` say more, `rock down` ends it",
                file=sys.stderr,
            )
        raise
    result = {
        "pid": manager.pid,
        "socket": str(folder.service()),
        "state": str(folder.path),
        "log": str(folder.log),
        "ready": wait,
    }
    if as_json:
        print_json(result)
    else:
        ready = ", every wanted sandbox is READY" if wait else ""
        print(f"pid {manager.pid} serves at {folder.service()}{ready}", file=sys.stderr)


def _environment() -> dict[str, str]:
    """The manager is given its folder; a token for calling services is none of its business."""
    return {name: value for name, value in os.environ.items() if name not in ("ROCK_TOKEN", "ROCK_URL")}


def _await_answer(manager: subprocess.Popen[bytes], folder: StateFolder, said: int) -> None:
    """Return once the manager serves; end with its code and its words if it ended instead."""
    from rocknroll.sandbox.errors import ServiceUnreachable

    deadline_s = time.monotonic() + START_S
    while manager.poll() is None:
        if folder.manager() == manager.pid and folder.service().exists():
            with connect(folder.path, None) as client:
                try:
                    client.healthz()
                    return
                except ServiceUnreachable:
                    pass  # between binding its socket and serving
        if time.monotonic() > deadline_s:
            raise ServiceUnreachable(f"the manager with pid {manager.pid} did not answer within {START_S:g} s")
        time.sleep(POLL_S)
    with folder.log.open("rb") as log:
        log.seek(said)
        sys.stderr.write(log.read().decode(errors="replace"))
    raise typer.Exit(manager.returncode if manager.returncode > 0 else ExitCode.SERVICE)


def _end(folder: StateFolder, pid: int, timeout_s: float) -> bool:
    """End a manager; True when it had to be killed."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if folder.manager() != pid:  # it ended before the descriptor was had, and the pid may be another's now
            return False
        signal.pidfd_send_signal(process, signal.SIGTERM)
        if select.select([process], [], [], timeout_s)[0]:
            return False
        signal.pidfd_send_signal(process, signal.SIGKILL)
        select.select([process], [], [])
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(process)


def _say_plan(fleet: FleetFile, folder: StateFolder, as_json: bool) -> None:
    from rocknroll.sandbox.service.access import load_tokens

    load_tokens(fleet.listen.tokens, os.environ)
    plan: dict[str, Any] = {
        "state": str(folder.path),
        "listen": [str(fleet.listen.unix or folder.socket), *([fleet.listen.tcp] if fleet.listen.tcp else [])],
        "manager": folder.manager(),
        "pools": {
            name: {"runtime": pool.runtime, "size": pool.size, "image": pool.image or None}
            for name, pool in fleet.pools.items()
        },
    }
    if as_json:
        print_json(plan)
        return
    for name, pool in plan["pools"].items():
        print(f"would keep {pool['size']} × {name} ({pool['runtime']})")
    print(f"would serve at {' and '.join(plan['listen'])}, with its state in {plan['state']}")
    if plan["manager"] is not None:
        print(f"but would be refused: the manager with pid {plan['manager']} works there already")


def _say_end(folder: StateFolder, pid: int | None, as_json: bool) -> None:
    from rocknroll.sandbox.store import Store

    leases: list[int] = []
    if folder.store.exists():
        store = Store(folder.store)
        leases = [lease.token for lease in store.open_leases()]
        store.close()
    if as_json:
        print_json({"manager": pid, "leases": leases})
    else:
        print(f"would end the manager with pid {pid}" if pid is not None else "no manager runs")
        print(f"would end {len(leases)} leases, and all sandboxes of {folder.path}")
