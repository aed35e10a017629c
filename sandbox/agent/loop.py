"""A single-threaded event loop: descriptors, timers, ended children.

asyncio would do, and would cost every sandbox 4 MiB and half of the agent's start time. A callback
that raises is reported on stderr and the loop goes on: a mistake in one request ends no sandbox.
"""

from __future__ import annotations

import heapq
import os
import select
import signal
import sys
import time
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

WAKEUP_BYTES = 4096
TIMERS_KEPT = 256
"""More than twice what is due, and at least so many, are looked through for cancelled ones."""


class Timer:
    """What `Loop.later` returns."""

    __slots__ = ("callback", "due_s")

    def __init__(self, due_s: float, callback: Callable[[], Any] | None) -> None:
        self.due_s, self.callback = due_s, callback

    def __lt__(self, other: Timer) -> bool:
        return self.due_s < other.due_s

    def cancel(self) -> None:
        """Never call back. Idempotent, also after it was called."""
        self.callback = None


class Loop:
    """`run` serves until `stop`. Descriptors have to be non-blocking: a call may come without data being there."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], Any]] = {}
        self._writers: dict[int, Callable[[], Any]] = {}
        self._timers: list[Timer] = []
        self._sweep_at = TIMERS_KEPT
        self._children: dict[int, Callable[[int], Any]] = {}
        self._stopped = False
        self._wakeup, self._signalled = os.pipe()
        for number in (self._wakeup, self._signalled):
            os.set_blocking(number, False)
        self.on_readable(self._wakeup, self._drain_wakeups)

    def on_readable(self, descriptor: int, callback: Callable[[], Any] | None) -> None:
        """Call back whenever it has something to read, or its other end closed; None: no more."""
        self._change(self._readers, descriptor, callback)

    def on_writable(self, descriptor: int, callback: Callable[[], Any] | None) -> None:
        """Call back whenever it takes data; None: no more."""
        self._change(self._writers, descriptor, callback)

    def forget(self, descriptor: int) -> None:
        """Before a descriptor is closed."""
        self.on_readable(descriptor, None)
        self.on_writable(descriptor, None)

    def _change(self, table: dict[int, Callable[[], Any]], descriptor: int, callback: Callable[[], Any] | None) -> None:
        known = descriptor in self._readers or descriptor in self._writers
        if callback is not None:
            table[descriptor] = callback
        elif table.pop(descriptor, None) is None:
            return
        events = select.EPOLLIN if descriptor in self._readers else 0
        events |= select.EPOLLOUT if descriptor in self._writers else 0
        if not known:
            self._epoll.register(descriptor, events)
        elif events:
            self._epoll.modify(descriptor, events)
        else:
            self._epoll.unregister(descriptor)

    def later(self, delay_s: float, callback: Callable[[], Any]) -> Timer:
        """Call back once, after `delay_s` seconds."""
        if len(self._timers) >= self._sweep_at:
            self._timers = [timer for timer in self._timers if timer.callback is not None]
            heapq.heapify(self._timers)
            self._sweep_at = max(TIMERS_KEPT, 2 * len(self._timers))
        timer = Timer(time.monotonic() + delay_s, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def on_exit(self, pid: int, callback: Callable[[int], Any]) -> None:
        """Call back once with a child's exit code; a negative one is the signal that killed it."""
        self._children[pid] = callback

    def stop(self) -> None:
        self._stopped = True

    def run(self) -> None:
        """Collects every child of this process, orphans that were handed to it included."""
        signal.set_wakeup_fd(self._signalled, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._reap()
        while not self._stopped:
            for descriptor, events in self._epoll.poll(self._wait_s()):
                if events & ~select.EPOLLOUT:
                    self._call(self._readers.get(descriptor))
                if events & ~select.EPOLLIN:
                    self._call(self._writers.get(descriptor))
            now_s = time.monotonic()
            while self._timers and self._timers[0].due_s <= now_s:
                self._call(heapq.heappop(self._timers).callback)

    def _wait_s(self) -> float:
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0].due_s - time.monotonic()) if self._timers else -1

    def _call(self, callback: Callable[[], Any] | None) -> None:
        if callback is not None:
            try:
                callback()
            except Exception:
                traceback.print_exc()
                sys.stderr.flush()

    def _drain_wakeups(self) -> None:
        try:
            while len(os.read(self._wakeup, WAKEUP_BYTES)) == WAKEUP_BYTES:
                continue
        except BlockingIOError:
            pass
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            ended = self._children.pop(pid, None)
            if ended is not None:
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                self._call(lambda ended=ended, code=code: ended(code))  # type: ignore[misc]
