"""What fleets left that died without a successor, for `rock gc`: found first, removed only when told.

Nothing of a living process is ever found: containers name their owner, and a forkserver that waits for
a successor still listens on its socket. What a successor could still take over ends by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rocknroll.sandbox.errors import RuntimeUnavailable, StateLocked
from rocknroll.sandbox.runtimes import forklink
from rocknroll.sandbox.state_folder import StateFolder

if TYPE_CHECKING:
    from rocknroll.sandbox.runtimes.docker_garbage import Garbage

ResultT = TypeVar("ResultT")
_SOCKETS = Path("/proc/net/unix")


def ask_docker(work: Callable[..., ResultT], *arguments: Any) -> ResultT:
    """`work(client, *arguments)` with a client of the default daemon.

    Raises:
        RuntimeUnavailable: no daemon answers. What `Daemon.call` raises.
    """
    from rocknroll.sandbox.runtimes.docker_daemon import Daemon  # its library takes a moment to import

    daemon = Daemon()
    try:
        return asyncio.run(daemon.call(work, *arguments))
    finally:
        daemon.close()


def docker_leftovers(running: bool) -> tuple[list[Garbage], str]:
    """Containers of dead fleets, and why the daemon was not asked (empty: it was).

    Those that still run are left out unless `running`: a manager that comes back goes on with them, leases included.
    """
    from rocknroll.sandbox.runtimes.docker_garbage import garbage

    try:
        return [each for each in ask_docker(garbage) if running or each.state != "running"], ""
    except RuntimeUnavailable as error:
        return [], str(error)


def folder_leftovers(state: StateFolder) -> list[Path]:
    """Files of a dead manager and of forkservers that ended without cleaning up; none while a manager works there."""
    return [] if state.manager() is not None else _unserved(state)


def remove(state: StateFolder, containers: Iterable[Garbage], files: Iterable[Path]) -> None:
    """Remove what was found, as far as it is still nobody's.

    Raises:
        RuntimeUnavailable: Docker's daemon went away meanwhile.
    """
    from rocknroll.sandbox.runtimes import docker_garbage

    found, paths = list(containers), set(files)
    if found:
        ask_docker(docker_garbage.remove, found)
    if paths:
        with contextlib.suppress(StateLocked), state.locked():
            for path in paths & set(_unserved(state)):
                if path.is_dir():
                    forklink.clean(path)
                else:
                    path.unlink(missing_ok=True)


def _unserved(state: StateFolder) -> list[Path]:
    """The manager's socket and the folders of forkservers, where nobody listens any more."""
    if not state.run.is_dir():
        return []
    served = {line.split()[-1] for line in _SOCKETS.read_text(encoding="utf-8", errors="replace").splitlines()}
    servers = [path for path in state.run.iterdir() if (path / forklink.DOOR_FACTS).exists()]
    dead = [path for path in servers if str(path / forklink.DOOR) not in served]
    socket = state.service()
    stale = [socket] if socket.is_socket() and str(socket) not in served else []
    return sorted([*dead, *stale])
