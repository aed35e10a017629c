"""A persistent shell: what one run sets, the next one finds; and no run can break it.

A run that has to be ended (deadline, interrupt) loses what it started, not what it set: the shell
writes its state down before the next command begins, and a new shell goes on from there. So does
one that `set -e` ended. A shell that does not do so in time is killed, and a new one goes on from
the state before the run. `exit` ends the session, as it ends a person's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from . import shell
from .frames import Refused
from .output import DEFAULT_OUTPUT_BYTES, MAX_OUTPUT_BYTES, HeadTail
from .pipes import Inlet, Outlet
from .processes import Hunt, family, hunt_owner, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .call import Call
    from .loop import Timer
    from .state import State

STREAMS = ("stdout", "stderr")
STOP_GRACE_S = 0.5
"""A shell that did not write its state down by then is killed."""
INTERRUPT_GRACE_S = 1.0
"""What an interrupted program has for cleaning up."""
MAX_REPORT_BYTES = 4096


class _Run:
    def __init__(self, call: Call, number: int) -> None:
        self.call, self.number = call, number
        self.limit = call.count("output_bytes", DEFAULT_OUTPUT_BYTES, MAX_OUTPUT_BYTES)
        self.timeout_s = call.seconds()
        self.nonce = os.urandom(8).hex()
        self.began_s = time.monotonic()
        self.timed_out = self.interrupted = False
        self.exit_code: int | None = None
        self.ended = False


class Session:
    """One shell after the other; one run at a time. `on_over` is called when it ended by itself."""

    def __init__(self, state: State, call: Call, name: str) -> None:
        self._state, self._loop = state, state.loop
        self.name, self.token = name, int(call.request["token"])
        self.owner = state.marks.owner()
        self._opening: Call | None = call
        self._cwd = state.path(call.request.get("cwd") or ".")
        self._variables = {**state.variables, **call.mapping("variables")}
        self._dialect = shell.find(self._variables)
        self._run: _Run | None = None
        self._runs = 0
        self._ready = self._stopping = self._closed = False
        self._timers: list[Timer] = []
        self._kept = {stream: HeadTail(DEFAULT_OUTPUT_BYTES) for stream in STREAMS}
        self._reports = b""
        self._pid = 0
        self._control: Inlet | None = None
        with contextlib.ExitStack() as made:
            self._text, self._after, self._last = (_memory(made, what) for what in ("text", "after", "last"))
            self._report, self._report_end = self._pipe(made, self._reported)
            pipes = [self._pipe(made, lambda data, name=name: self._kept[name].feed(data)) for name in STREAMS]  # type: ignore[misc]
            self._outlets, self._ends = [pipe[0] for pipe in pipes], [pipe[1] for pipe in pipes]
            self._start_shell(None)
            self._held = made.pop_all()
        self._timers = [self._loop.later(call.seconds(), self._give_up)]

    def _pipe(self, made: contextlib.ExitStack, take: Callable[[bytes], Any]) -> tuple[Outlet, int]:
        reading, writing = os.pipe()
        outlet = Outlet(self._loop, reading, take)
        made.callback(outlet.close)
        made.callback(os.close, writing)
        return outlet, writing

    def _give_up(self) -> None:
        if self._opening is not None:
            self._opening.fail("request_timeout", f"the shell of the session {self.name!r} did not get ready")
            self._opening = None
            self.close(lambda: None)

    def _start_shell(self, state: int | None) -> None:
        """`state`: descriptor number in the shell that it goes on from.

        Raises:
            Refused: no process can be started. OSError: no descriptors are left.
        """
        numbers = self._dialect.numbers
        keep = {
            numbers.text: self._text,
            numbers.report: self._report_end,
            numbers.kept: self._after,
            numbers.last: self._last,
        }
        reading, writing = os.pipe()
        self._control = Inlet(self._loop, writing, lambda count: None)
        self._ready = self._stopping = False
        argv, variables = self._dialect.argv, self._variables
        try:
            mark, streams = self._state.marks.mark(self.owner), (reading, self._ends[0], self._ends[1])
            self._pid = self._state.spawner.fork(
                lambda: os.execve(argv[0], argv, variables), mark, streams, keep, self._cwd
            )
        finally:
            os.close(reading)
        self._loop.on_exit(self._pid, self._shell_ended)
        self._nonce = os.urandom(8).hex()
        self._tell(self._dialect.opening(self._nonce, state))

    def _tell(self, text: str) -> None:
        assert self._control is not None
        self._control.feed(text.encode(), end=False)

    def run(self, call: Call) -> None:
        """Run the call's body as a command.

        Raises:
            Refused: another one runs.
        """
        if self._run is not None:
            raise Refused("session_busy", f"the session {self.name!r} runs something; one command at a time")
        if b"\0" in call.body:
            raise Refused("protocol_error", "a command cannot hold a NUL byte")
        self._runs += 1
        run = self._run = _Run(call, self._runs)
        call.begin(self)
        for stream in STREAMS:
            before, cut = self._kept[stream].result()
            self._kept[stream] = HeadTail(run.limit)
            self._kept[stream].feed(before)
            self._kept[stream].missed(cut)
        for outlet in self._outlets:
            outlet.trickle(False)
        self._timers = [self._loop.later(run.timeout_s, self._expire)]
        if self._ready:
            self._send_run(run)

    def _send_run(self, run: _Run) -> None:
        os.ftruncate(self._text, 0)
        os.ftruncate(self._last, 0)
        _fill(self._text, run.call.body + b"\0")
        os.lseek(self._text, 0, os.SEEK_SET)
        self._tell(self._dialect.line(self._state.marks.mark(self.owner, run.number), run.nonce))

    def _reported(self, data: bytes) -> None:
        """`kind nonce status`, closed by a zero; whatever else turns up here is somebody's noise."""
        *whole, rest = (self._reports + data).split(b"\0")
        self._reports = rest[-MAX_REPORT_BYTES:]
        for report in whole:
            words = report.decode(errors="replace").split()[-3:]
            if len(words) < 3 or not words[2].isdigit():
                continue
            kind, nonce, status = words[0], words[1], int(words[2])
            if kind == "ready" and nonce == self._nonce and not self._ready:
                self._shell_ready()
            elif self._run is not None and nonce == self._run.nonce and self._run.exit_code is None:
                self._run.exit_code, self._run.ended = status, kind == "exit"
                if kind == "done" and not self._stopping:
                    self._finish()

    def _shell_ready(self) -> None:
        self._ready = True
        if self._opening is not None:
            opening, self._opening = self._opening, None
            for timer in self._timers:
                timer.cancel()
            opening.reply({"shell": self._dialect.name})
            self._rest()
        elif self._run is not None and (
            self._run.exit_code is not None or self._run.timed_out or self._run.interrupted
        ):
            self._finish()
        elif self._run is not None:
            self._send_run(self._run)

    def _expire(self) -> None:
        if self._run is not None:
            self._run.timed_out = True
            self._stop(gently=False)

    def interrupt(self) -> bool:
        """As Ctrl-C: what runs gets SIGINT and a second to clean up, then it is killed. Whether something ran."""
        if self._run is None:
            return False
        self._run.interrupted = True
        self._stop(gently=True)
        return True

    def cancel(self) -> None:
        self._expire()

    def more(self, data: bytes, end: bool) -> None:
        raise Refused("protocol_error", "commands of a session read an end of file")

    def credit(self, count: int) -> None:
        raise Refused("protocol_error", "this request takes no credit")

    def _stop(self, gently: bool) -> None:
        if not self._ready:
            return  # _shell_ready ends the run
        grace_s = 0.0
        if not self._stopping:
            self._stopping = True
            send(self._pid, shell.STOP_SIGNAL)
            if gently:
                grace_s = INTERRUPT_GRACE_S
                mark = self._state.marks.mark(self.owner, self._runs)
                for pid, kin in family(self._state.marks).items():
                    if kin.mark == mark and pid != self._pid:
                        send(pid, signal.SIGINT)
                self._timers.append(self._loop.later(grace_s, self._hunt_run))
            self._timers.append(self._loop.later(grace_s + STOP_GRACE_S, self._kill_shell))
        if not gently:
            self._hunt_run()

    def _hunt_run(self) -> None:
        """End what this run started; what earlier ones left in the background stays."""
        marks = self._state.marks
        hunt_owner(self._loop, marks, self.owner, lambda: None, run=self._runs, spare=(self._pid,))

    def _kill_shell(self) -> None:
        send(self._pid, signal.SIGKILL)

    def _shell_ended(self, exit_code: int) -> None:
        if self._closed:
            return
        self._report.drain()
        if self._control is not None:
            self._control.close()
        run = self._run
        if self._opening is not None or not self._ready:
            self._end(exit_code, f"its shell ended with {exit_code} before it was ready")
            return
        failed = run is not None and run.exit_code is not None and not run.ended
        if self._stopping or failed:
            if run is not None and self._stopping:
                self._hunt_run()
            state = self._state_to_go_on_from()
            if state is not None:
                try:
                    self._start_shell(state)
                except (Refused, OSError) as error:
                    self._end(exit_code, f"no new shell could be started: {error}")
                return
        self._end(run.exit_code if run is not None and run.exit_code is not None else exit_code, "")

    def _state_to_go_on_from(self) -> int | None:
        for descriptor, number in ((self._last, self._dialect.numbers.last), (self._after, self._dialect.numbers.kept)):
            state = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
            if state.endswith(shell.COMPLETE):
                state = self._dialect.restorable(state)
                os.ftruncate(descriptor, 0)
                _fill(descriptor, state)
                return number
        return None

    def _finish(self) -> None:
        run = self._run
        assert run is not None
        for outlet in self._outlets:
            outlet.drain()
        self._run = None
        for timer in self._timers:
            timer.cancel()
        (stdout, stdout_cut), (stderr, stderr_cut) = (self._kept[stream].result() for stream in STREAMS)
        exit_code = run.exit_code if run.exit_code is not None else -2 if run.interrupted else -9
        header: dict[str, Any] = {
            "exit_code": exit_code,
            "timed_out": run.timed_out,
            "interrupted": run.interrupted,
            "stdout_bytes": len(stdout),
            "stdout_cut": stdout_cut,
            "stderr_cut": stderr_cut,
            "wall_s": round(time.monotonic() - run.began_s, 6),
            "ended": run.ended,
        }
        run.call.reply(header, stdout + stderr)
        self._rest()

    def _rest(self) -> None:
        """Between runs, output of what runs in the background is kept for the next one."""
        for stream in STREAMS:
            self._kept[stream] = HeadTail(DEFAULT_OUTPUT_BYTES)
        for outlet in self._outlets:
            outlet.trickle(True)

    def _end(self, exit_code: int, reason: str) -> None:
        """The shell is gone and no other one follows."""
        opening, self._opening = self._opening, None
        if opening is not None:
            for outlet in self._outlets:
                outlet.drain()
            text = self._kept["stderr"].result()[0][-500:].decode(errors="replace").strip()
            opening.fail("exec_failed", f"no session could be opened: {text or reason}")
        elif self._run is not None:
            self._run.ended, self._run.exit_code = True, exit_code
            self._finish()
        self.close(lambda: None)

    def close(self, done: Any) -> None:
        """End the shell and all that it ever started. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._state.sessions.get(self.name) is self:
            del self._state.sessions[self.name]
        for timer in self._timers:
            timer.cancel()
        if self._run is not None:
            self._run.call.fail("session_ended", f"the session {self.name!r} was closed")
        if self._opening is not None:
            self._opening.fail("session_ended", f"the session {self.name!r} was closed")
        owner = self.owner
        Hunt(self._loop, self._state.marks, lambda pid, kin: kin.owner == owner, done)
        if self._control is not None:
            self._control.close()
        self._held.close()


def _memory(made: contextlib.ExitStack, what: str) -> int:
    descriptor = os.memfd_create(what)
    made.callback(os.close, descriptor)
    return descriptor


def _fill(descriptor: int, content: bytes) -> None:
    """Write from the beginning; the position stays."""
    rest, at = memoryview(content), 0
    while rest:
        count = os.pwrite(descriptor, rest, at)
        rest, at = rest[count:], at + count
