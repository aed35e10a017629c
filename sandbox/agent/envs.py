"""Environments inside the sandbox, each in a process of its own that answers one request after another.

Bodies pass through unread. A process that misses its deadline, dies or breaks the protocol is ended;
whoever waits learns why, and so does the fleet if it is the environment of the specification.
Forked from the agent where the module was loaded before (the forkserver), else started by its command.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

from .frames import Frames, Refused, pack
from .pipes import Inlet, Outlet
from .processes import hunt_owner, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .call import Call
    from .loop import Timer
    from .state import State

MAX_ENVS = 64
SPEC_ENV = "0"
"""The name of the environment that the sandbox's specification asks for; it outlives a lease."""
FORKED_FD = 3
EXIT_GRACE_S = 0.1
"""Between the end of its socket and its exit code, which says more."""


class EnvHost:
    """The environment's process and the requests that wait for it."""

    def __init__(self, state: State, call: Call, name: str) -> None:
        self._state, self._loop, self.name = state, state.loop, name
        self.token = int(call.request["token"])
        self.made_by = call.body
        self.spaces = b""
        self.over = ""
        self._pending: list[tuple[Call, float, Any]] = []
        self._timer: Timer | None = None
        self._owner = state.marks.owner()
        self._frames = Frames()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self.pid = self._spawn(call, theirs.fileno())
            except BaseException:
                ours.close()
                raise
        self._inlet = Inlet(self._loop, os.dup(ours.fileno()), lambda count: None)
        self._outlet = Outlet(self._loop, ours.detach(), self._received, self._hung_up)
        self._loop.on_exit(self.pid, self._died)

    def _spawn(self, call: Call, theirs: int) -> int:
        state, mark = self._state, self._state.marks.mark(self._owner)
        module = sys.modules.get(call.text("module"))
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if module is not None:
                work = lambda: _serve(module, state.variables)  # noqa: E731
                return state.spawner.fork(work, mark, (nothing, 2, 2), {FORKED_FD: theirs}, state.workdir)
            argv = [*map(str, call.request["argv"]), str(theirs)]
            return state.spawner.program(argv, state.workdir, state.variables, mark, (nothing, 2, 2), keep=[theirs])
        finally:
            os.close(nothing)

    def ask(self, call: Call, answered: Any) -> None:
        """Queue one request; its deadline runs from when the environment starts on it. `answered` gets the body."""
        timeout_s = call.seconds()
        if self.over:
            call.fail("env_crashed", "there is no environment any more: " + self.over)
            return
        self._pending.append((call, timeout_s, answered))
        if len(self._pending) == 1:
            self._send()

    def _send(self) -> None:
        call, timeout_s, _ = self._pending[0]
        self._inlet.feed(pack(b"", call.body), end=False)
        self._timer = self._loop.later(timeout_s, lambda: self.end("env_hung", f"no answer within {timeout_s:g} s"))

    def _received(self, data: bytes) -> None:
        try:
            frames = self._frames.feed(data)
        except Refused as refused:
            self.end("env_crashed", f"its process broke the protocol: {refused}")
            return
        for status, body in frames:
            if self._timer is None:
                self.end("env_crashed", "its process spoke without being asked")
                return
            self._timer.cancel()
            self._timer = None
            call, _, answered = self._pending.pop(0)
            if status == b"ok":
                answered(body)
            else:
                call.fail("env_error", "the environment raised an exception", body)
            if self._pending and not self.over:
                self._send()

    def _hung_up(self) -> None:
        self._loop.later(EXIT_GRACE_S, lambda: self.end("env_crashed", "its process closed its socket"))

    def _died(self, exit_code: int) -> None:
        how = f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"
        self.end("env_crashed", "its process " + how)

    def end(self, kind: str, message: str) -> None:
        """The process is dead, or is now, with all it started. Idempotent."""
        if self.over:
            return
        self.over = message
        if self._timer is not None:
            self._timer.cancel()
        self._outlet.close()
        self._inlet.close()
        send(self.pid, signal.SIGKILL)
        hunt_owner(self._loop, self._state.marks, self._owner, lambda: None)
        pending, self._pending = self._pending, []
        for index, (call, _, _) in enumerate(pending):
            call.fail(kind if index == 0 else "env_crashed", "the environment is gone: " + message)
        if kind != "closed" and self.name == SPEC_ENV:  # of the others only their holder knows, and is told above
            self._state.announce({"event": "env_ended", "kind": kind, "message": message})


def _serve(module: Any, variables: dict[str, str]) -> int:
    os.environ.clear()
    os.environ.update(variables)
    return int(module.serve(FORKED_FD))


class Envs:
    """The operations on environments, by name."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._envs: dict[str, EnvHost] = {}

    def processes(self) -> set[int]:
        """Of the environments that are alive."""
        return {env.pid for env in self._envs.values() if not env.over}

    def make(self, call: Call) -> None:
        """An environment that an equal body made is kept."""
        name = str(call.request.get("env", SPEC_ENV))
        env = self._envs.get(name)
        if env is not None and not env.over and env.made_by == call.body:
            call.reply({"made": False}, env.spaces)
            return
        self._drop(name)
        if len(self._envs) >= MAX_ENVS:
            raise Refused("quota_exceeded", f"there are {MAX_ENVS} environments in this sandbox already")
        made = self._envs[name] = EnvHost(self._state, call, name)

        def answered(spaces: bytes) -> None:
            made.spaces = spaces
            call.reply({"made": True}, spaces)

        made.ask(call, answered)

    def ask(self, call: Call) -> None:
        name = str(call.request.get("env", SPEC_ENV))
        env = self._envs.get(name)
        if env is None:
            raise Refused("env_crashed", f"no environment {name!r} was made in this sandbox")
        env.ask(call, lambda body: call.reply({}, body))

    def close(self, call: Call) -> None:
        name = str(call.request.get("env", SPEC_ENV))
        env = self._envs.get(name)
        if env is None or env.over:
            self._drop(name)
            call.reply({})
            return

        def closed(body: bytes) -> None:
            self._drop(name)
            call.reply({})

        env.ask(call, closed)

    def end_older(self, token: int) -> None:
        """A new holder finds no environment but the specification's."""
        for name, env in list(self._envs.items()):
            if name != SPEC_ENV and env.token < token:
                self._drop(name)

    def _drop(self, name: str) -> None:
        env = self._envs.pop(name, None)
        if env is not None:
            env.end("closed", "closed")
