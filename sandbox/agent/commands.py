"""One command: its pipes, its deadline, and the end of everything it started.

`exec` keeps head and tail of the output and answers at the end. `stream` passes output on while it
comes, never more than the client has room for: then the pipe is left unread, and the command waits.
"""

from __future__ import annotations

import contextlib
import os
import time

from .frames import Refused
from .output import DEFAULT_OUTPUT_BYTES, MAX_OUTPUT_BYTES, HeadTail
from .pipes import Inlet, Outlet
from .processes import hunt_owner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from .call import Call
    from .state import State

    Start = Callable[[int, tuple[int, int, int]], int]
    """Called with a mark and the three standard streams; returns a pid."""

PIPE_GRACE_S = 0.05
"""Wait for the rest of the output once a command ended but a child of it keeps the pipe open."""
WINDOW_BYTES = 1 << 18
"""Input that is under way at most: what the client may send before it gets credit."""
MAX_WINDOW_BYTES = 1 << 22
STREAMS = ("stdout", "stderr")
SIGKILLED = -9


class Running:
    """A process with its pipes, from its start to its answer. Subclasses say what becomes of the output."""

    def __init__(self, state: State, call: Call, start: Start, stdin: int, timeout_s: float) -> None:
        self._state, self._call, self._loop = state, call, state.loop
        self.token = int(call.request["token"])
        self.owner = state.marks.owner()
        self._began_s = time.monotonic()
        self._exit_code: int | None = None
        self._over = self._grace_over = self._timed_out = self._killed = False
        with contextlib.ExitStack() as theirs:
            ours: dict[str, int] = {}
            ends = []
            for name in STREAMS:
                ours[name], end = os.pipe()
                theirs.callback(os.close, end)
                ends.append(end)
            try:
                pid = start(state.marks.mark(self.owner), (stdin, ends[0], ends[1]))
            except BaseException:
                for reading in ours.values():
                    os.close(reading)
                raise
        self._outlets = [self._outlet(name, reading) for name, reading in ours.items()]
        self._loop.on_exit(pid, self._ended)
        self._deadline = self._loop.later(timeout_s, self._expire)
        state.commands.add(self)
        call.begin(self)

    def _outlet(self, name: str, descriptor: int) -> Outlet:
        return Outlet(self._loop, descriptor, lambda data: self._took(name, data), self._outlet_ended)

    def _took(self, name: str, data: bytes) -> None:
        raise NotImplementedError

    def _answer(self, header: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def _stalled(self) -> bool:
        """Whether output is left unread because the client has no room for it."""
        return False

    def more(self, data: bytes, end: bool) -> None:
        raise Refused("protocol_error", "this request takes no input")

    def credit(self, count: int) -> None:
        raise Refused("protocol_error", "this request takes no credit")

    def cancel(self) -> None:
        self.kill()

    def _expire(self) -> None:
        self._timed_out = True
        self.kill()

    def kill(self) -> None:
        """End everything the command started, in whatever session and under whatever parent. Idempotent."""
        if not self._killed:
            self._killed = True
            hunt_owner(self._loop, self._state.marks, self.owner, self._hunted)

    def _hunted(self) -> None:
        # Its exit code is known by now, or never will be: what cannot be killed is not waited for.
        self._exit_code = SIGKILLED if self._exit_code is None else self._exit_code
        self._finish_if_over()

    def _ended(self, exit_code: int) -> None:
        self._exit_code = exit_code
        self._finish_if_over()
        if not self._over:
            self._loop.later(PIPE_GRACE_S, self._stop_waiting)

    def _stop_waiting(self) -> None:
        """A process in the background holds the pipe: what the command printed is what is in it now."""
        self._grace_over = True
        self._finish_if_over()

    def _outlet_ended(self) -> None:
        self._finish_if_over()

    def _finish_if_over(self) -> None:
        if self._over or self._exit_code is None:
            return
        if any(outlet.open for outlet in self._outlets):
            if not self._grace_over and not self._killed:
                return
            for outlet in self._outlets:
                outlet.drain()
            if self._over or self._stalled():
                return
        self._over = True
        self._deadline.cancel()
        self._state.commands.discard(self)
        for outlet in self._outlets:
            outlet.abandon(self._state.abandoned)
        self._close()
        wall_s = round(time.monotonic() - self._began_s, 6)
        self._answer({"exit_code": self._exit_code, "timed_out": self._timed_out, "wall_s": wall_s})

    def _close(self) -> None:
        """Give back what the subclass holds."""


class Command(Running):
    """`exec`: the whole output with the answer, or its head and tail."""

    def __init__(self, state: State, call: Call, start: Start) -> None:
        limit = call.count("output_bytes", DEFAULT_OUTPUT_BYTES, MAX_OUTPUT_BYTES)
        self._kept = {name: HeadTail(limit) for name in STREAMS}
        source = os.memfd_create("stdin")
        try:
            with os.fdopen(os.dup(source), "wb") as file:
                file.write(call.body)
            os.lseek(source, 0, os.SEEK_SET)
            super().__init__(state, call, start, source, call.seconds())
        finally:
            os.close(source)

    def _took(self, name: str, data: bytes) -> None:
        self._kept[name].feed(data)

    def _answer(self, header: Mapping[str, Any]) -> None:
        (stdout, stdout_cut), (stderr, stderr_cut) = (self._kept[name].result() for name in STREAMS)
        cut = {"stdout_bytes": len(stdout), "stdout_cut": stdout_cut, "stderr_cut": stderr_cut}
        self._call.reply({**header, **cut}, stdout + stderr)


class Stream(Running):
    """`stream`: output as it comes, input as it is sent, both no faster than the other end takes it."""

    def __init__(self, state: State, call: Call, start: Start) -> None:
        self._room = call.count("window", WINDOW_BYTES, MAX_WINDOW_BYTES)
        self._congested = False
        timeout_s = call.seconds()
        reading, writing = os.pipe()
        try:
            super().__init__(state, call, start, reading, timeout_s)
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        self._inlet = Inlet(self._loop, writing, lambda count: self._call.say({"credit": count}))
        self._listen()

    def more(self, data: bytes, end: bool) -> None:
        if self._inlet.waiting_bytes + len(data) > 2 * WINDOW_BYTES:
            self.kill()
            raise Refused("protocol_error", "more input than there was credit for")
        self._inlet.feed(data, end)

    def credit(self, count: int) -> None:
        self._room = min(self._room + count, MAX_WINDOW_BYTES)
        self._listen()
        self._finish_if_over()

    def _took(self, name: str, data: bytes) -> None:
        if self._room <= 0 or self._congested:
            return  # It was killed: what the client has no room for is not waited for.
        self._room -= len(data)
        self._call.say({"chunk": name}, data)
        self._congested = self._call.peer.when_drained(self._drained)
        self._listen()

    def _drained(self) -> None:
        self._congested = False
        self._listen()
        self._finish_if_over()

    def _stalled(self) -> bool:
        return not self._killed and (self._room <= 0 or self._congested)

    def _listen(self) -> None:
        for outlet in self._outlets:
            outlet.listen(not self._stalled())

    def _answer(self, header: Mapping[str, Any]) -> None:
        self._call.reply(header)

    def _close(self) -> None:
        self._inlet.close()
