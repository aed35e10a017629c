"""The agent: the operations it knows, and what they share.

The fence stands here: every operation passes `admit`, so a token that is lower than the highest
seen gets nothing done, and the first request with a higher one ends every process of the sandbox
but the environment of its specification: no holder ever meets what another one left running.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os

from .archive_jobs import pack_folder, unpack_folder
from .commands import Command, Stream
from .envs import Envs
from .files import Files
from .frames import Refused, pack
from .identity import Identity
from .paths import Roots
from .processes import Hunt, Marks
from .sessions import Session
from .spawn import Spawner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from .call import Call, Job, Operation
    from .commands import Running
    from .connection import Connection
    from .loop import Loop
    from .pipes import Outlet
    from .rank import Rank

MAX_COMMANDS = 256
MAX_SESSIONS = 32


class State:
    """One per agent. `config`: see docs/sandbox/agent.md."""

    def __init__(self, loop: Loop, config: Mapping[str, Any], rank: Rank) -> None:
        self.loop = loop
        self.workdir = str(config["workdir"])
        self.variables = {str(key): str(value) for key, value in config["variables"].items()}
        self.token = int(config["token"])
        self.secret = str(config["secret"])
        self.marks = Marks()
        identity = Identity(config.get("user"))
        self.spawner = Spawner(self.marks, identity, rank)
        roots = [os.path.normpath(os.path.join(self.workdir, str(root))) for root in config.get("roots") or ["/"]]
        self.files = Files(identity, Roots(roots, self.workdir))
        self.envs = Envs(self)
        self.commands: set[Running] = set()
        self.sessions: dict[str, Session] = {}
        self.connections: set[Connection] = set()
        self.abandoned: collections.deque[Outlet] = collections.deque()
        self._fences: list[Callable[[], Any]] = []
        self._fencing = 0
        self._operations: dict[str, Operation] = {
            "fence": self._fence,
            "exec": self._exec,
            "stream": self._stream,
            "cancel": self._cancel,
            "more": self._more,
            "credit": self._credit,
            "session.open": self._session_open,
            "session.run": lambda call: self._session(call).run(call),
            "session.interrupt": self._session_interrupt,
            "session.close": self._session_close,
            "read": self.files.read,
            "write": self.files.write,
            "abandon": self.files.abandon,
            "stat": self.files.stat,
            "pack": lambda call: self._limited(lambda: pack_folder(self, call)),
            "unpack": lambda call: self._limited(lambda: unpack_folder(self, call)),
            "env.make": self.envs.make,
            "env.reset": self.envs.ask,
            "env.step": self.envs.ask,
            "env.close": self.envs.close,
        }

    def carry_out(self, call: Call) -> None:
        """One request of a connection that proved itself.

        Raises:
            Refused, OSError: it failed. KeyError, TypeError, ValueError: its fields are wrong.
        """
        operation = self._operations.get(call.name)
        if operation is None:
            raise Refused("protocol_error", f"unknown operation {call.name!r}")
        token = call.request["token"]
        if isinstance(token, bool) or not isinstance(token, int):
            raise Refused("protocol_error", "a token is a whole number")
        self.admit(token)
        operation(call)

    def admit(self, token: int) -> None:
        """Refuse a token lower than the highest seen; a higher one ends what lower ones started.

        Raises:
            Refused: `stale_token`.
        """
        if token < self.token:
            raise Refused("stale_token", f"token {token} is stale, {self.token} is in force")
        if token == self.token:
            return
        self.token = token
        self.files.drop(None, below_token=token)
        self.envs.end_older(token)
        for session in list(self.sessions.values()):
            session.close(lambda: None)
        for command in list(self.commands):
            command.kill()
        kept = self.envs.processes()
        self._fencing += 1
        Hunt(self.loop, self.marks, lambda pid, kin: pid not in kept and not kept.intersection(kin.above), self._fenced)

    def _fenced(self) -> None:
        self._fencing -= 1
        if self._fencing:
            return
        waiting, self._fences = self._fences, []
        for reply in waiting:
            reply()

    def path(self, path: str) -> str:
        """Relative ones start at the working directory."""
        return os.path.join(self.workdir, path)

    def announce(self, event: Mapping[str, Any]) -> None:
        """Tell every connection something nobody asked for."""
        frame = pack(json.dumps(event).encode())
        for connection in list(self.connections):
            connection.send(frame)

    def _fence(self, call: Call) -> None:
        """Answered once nothing of an earlier holder is left."""
        token = self.token
        if self._fencing:
            self._fences.append(lambda: call.reply({"token": token}))
        else:
            call.reply({"token": token})

    def _limited(self, start: Callable[[], Any]) -> None:
        if len(self.commands) >= MAX_COMMANDS:
            raise Refused("quota_exceeded", f"{MAX_COMMANDS} commands run in this sandbox already")
        start()

    def _program(self, call: Call) -> Callable[[int, tuple[int, int, int]], int]:
        argv = [str(part) for part in call.request["argv"]]
        if not argv:
            raise Refused("exec_failed", "cannot run []: no program is named")
        cwd = self.path(call.request.get("cwd") or ".")
        variables = {**self.variables, **call.mapping("variables")}
        return lambda mark, streams: self.spawner.program(argv, cwd, variables, mark, streams)

    def _exec(self, call: Call) -> None:
        self._limited(lambda: Command(self, call, self._program(call)))

    def _stream(self, call: Call) -> None:
        self._limited(lambda: Stream(self, call, self._program(call)))

    def _job(self, call: Call) -> Job | None:
        """What goes on for an earlier request of the same connection; None: it is over, as it may be any moment."""
        return call.peer.jobs.get(call.count("to", 0, 1 << 62))

    def _cancel(self, call: Call) -> None:
        job = self._job(call)
        if job is not None:
            job.cancel()

    def _more(self, call: Call) -> None:
        job = self._job(call)
        if job is not None:
            job.more(call.body, bool(call.request.get("end")))

    def _credit(self, call: Call) -> None:
        job = self._job(call)
        if job is not None:
            job.credit(call.count("count", 0, 1 << 62))

    def _session(self, call: Call) -> Session:
        name = call.text("name")
        session = self.sessions.get(name)
        if session is None:
            raise Refused("session_ended", f"there is no session {name!r} (any more)")
        return session

    def _session_open(self, call: Call) -> None:
        name = call.text("name")
        if name in self.sessions:
            raise Refused("session_busy", f"there is a session {name!r} already")
        if len(self.sessions) >= MAX_SESSIONS:
            raise Refused("quota_exceeded", f"there are {MAX_SESSIONS} sessions in this sandbox already")
        self.sessions[name] = Session(self, call, name)

    def _session_interrupt(self, call: Call) -> None:
        call.reply({"interrupted": self._session(call).interrupt()})

    def _session_close(self, call: Call) -> None:
        with contextlib.suppress(Refused):
            self._session(call).close(lambda: call.reply({}))
            return
        call.reply({})
