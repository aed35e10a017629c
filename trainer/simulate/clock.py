"""A virtual clock: processes that sleep, queue for slots and wait for signals, in no real time.

A process is a generator that yields what it waits for: a number of seconds, a `Slots` that it wants one of, or a
`Signal`. Everything is deterministic: what happens at the same instant happens in the order in which it was caused.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any


class Stuck(Exception):
    """Nothing will ever happen again, and somebody still waits for something."""


class Signal:
    """Something that processes wait for; `fire` wakes all of them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: list[Job] = []

    def fire(self) -> None:
        waiting, self._waiting = self._waiting, []
        for job in waiting:
            self._clock.wake(job)

    def wait(self, job: Job) -> None:
        self._waiting.append(job)


class Slots:
    """`count` places, given out first come, first served. Whoever got one calls `release`."""

    def __init__(self, clock: Clock, count: int) -> None:
        self._clock = clock
        self._count = count
        self._taken = 0
        self._queue: deque[Job] = deque()
        self._busy_s = 0.0
        self._since_s = 0.0

    def release(self) -> None:
        self._account(-1)
        self._grant()

    def wait(self, job: Job) -> None:
        self._queue.append(job)
        self._grant()

    def utilisation(self) -> float:
        """Share of the slot-seconds so far in which a slot was taken."""
        self._account(0)
        return self._busy_s / (self._count * self._clock.now_s) if self._clock.now_s else 0.0

    def _grant(self) -> None:
        while self._queue and self._taken < self._count:
            job = self._queue.popleft()
            if not job.over:
                self._account(+1)
                job.holds = self
                self._clock.wake(job)

    def _account(self, change: int) -> None:
        self._busy_s += self._taken * (self._clock.now_s - self._since_s)
        self._since_s = self._clock.now_s
        self._taken += change


Wait = float | Slots | Signal
Process = Generator[Wait, None, Any]


@dataclass(eq=False)
class Job:
    """A process that runs on a clock."""

    process: Process
    over: bool = False
    result: Any = None
    holds: Slots | None = field(default=None, repr=False)
    """A slot that was granted and that the process, not awake yet, does not know of."""


class Clock:
    """The time, and everything that is going to happen."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Job]] = []
        self._count = 0

    def start(self, process: Process) -> Job:
        """Begin `process` now; its first lines run at the next step."""
        job = Job(process)
        self.wake(job)
        return job

    def wake(self, job: Job, after_s: float = 0.0) -> None:
        """Let `job` go on `after_s` seconds from now."""
        self._count += 1
        heapq.heappush(self._events, (self.now_s + after_s, self._count, job))

    def cancel(self, job: Job) -> None:
        """End `job` where it is; its `finally` clauses run now."""
        job.over = True
        job.process.close()
        if job.holds is not None:
            job.holds.release()

    def run(self, until: Job) -> Any:
        """Let time pass until `until` is over; its result.

        Raises:
            Stuck: nothing is left to happen before it.
        """
        while not until.over:
            if not self._events:
                raise Stuck(f"at {self.now_s:g} s nothing is under way any more, and a process still waits")
            self.now_s, _, job = heapq.heappop(self._events)
            if not job.over:
                self._resume(job)
        return until.result

    def _resume(self, job: Job) -> None:
        job.holds = None
        try:
            wait = next(job.process)
        except StopIteration as end:
            job.over, job.result = True, end.value
            return
        if isinstance(wait, (Slots, Signal)):
            wait.wait(job)
        else:
            self.wake(job, wait)
