"""From a configuration to a serving agent."""

from __future__ import annotations

import json
import os
import socket
import time

from .connection import Connection
from .loop import Loop
from .processes import adopt_orphans, forbid_inspection
from .rank import Rank
from .state import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

BACKLOG = 32
MAX_STRANGERS = 16
"""Who has not proved itself makes room for who comes after."""
ACCEPT_PAUSE_S = 0.05
ORPHAN_CHECKS = 10


def serve(listener: socket.socket, config: Mapping[str, Any]) -> None:
    """Serve until killed, or until nobody has been connected for `orphan_ttl_s`.

    `config`: `workdir`, `variables`, `token` (the lowest that is accepted), `secret`; optionally `user`
    (`uid:gid` of commands and files), `roots` (folders that file operations may touch), `orphan_ttl_s`.
    """
    rank = Rank()
    forbid_inspection()
    adopt_orphans()
    loop = Loop()
    _Server(loop, State(loop, config, rank), listener, config.get("orphan_ttl_s"))
    loop.run()


class _Server:
    def __init__(self, loop: Loop, state: State, listener: socket.socket, orphan_ttl_s: float | None) -> None:
        self._loop, self._state, self._listener, self._ttl_s = loop, state, listener, orphan_ttl_s
        self._open: list[Connection] = []
        self._idle_since_s = time.monotonic()
        listener.setblocking(False)
        loop.on_readable(listener.fileno(), self._accept)
        if orphan_ttl_s is not None:
            self._look(orphan_ttl_s)

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor is left: look again in a moment
            self._loop.on_readable(self._listener.fileno(), None)
            self._loop.later(ACCEPT_PAUSE_S, lambda: self._loop.on_readable(self._listener.fileno(), self._accept))
            return
        self._open.append(Connection(self._state, link, self._open.remove))
        strangers = [connection for connection in self._open if connection not in self._state.connections]
        if len(strangers) > MAX_STRANGERS:
            strangers[0].close()

    def _look(self, ttl_s: float) -> None:
        now_s = time.monotonic()
        if self._state.connections:
            self._idle_since_s = now_s
        elif now_s >= self._idle_since_s + ttl_s:
            self._loop.stop()
        self._loop.later(ttl_s / ORPHAN_CHECKS, lambda: self._look(ttl_s))


def main(source: str) -> None:
    """`source`: a descriptor or the path of a JSON file, which is removed: it holds the secret.

    With `listener`, the number of a listening socket, in it that is served; else a socket is bound at `socket`.
    """
    with open(int(source) if source.isdigit() else source, "rb") as file:
        config = json.loads(file.read())
    if not source.isdigit():
        os.unlink(source)
    if "listener" in config:
        listener = socket.socket(fileno=int(config["listener"]))
    else:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Who may reach the folder may connect; the owner of the sandbox need not be this user.
        mask = os.umask(0)
        listener.bind(config["socket"])
        os.umask(mask)
        listener.listen(BACKLOG)
    serve(listener, config)
