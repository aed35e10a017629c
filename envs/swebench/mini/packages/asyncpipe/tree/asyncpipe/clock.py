"""Where time comes from: the system, or a test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from heapq import heappop, heappush
from itertools import count
from typing import Any

from .group import reap

_SETTLING_ROUNDS = 100
"""Turns of the event loop after which all tasks are taken to wait. Each hop from task to task needs one or two."""


class Clock:
    """Real time."""

    def now(self) -> float:
        """Seconds since some fixed time; never goes back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class VirtualClock(Clock):
    """A clock for tests: it stands still until `run` moves it."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = count()

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        heappush(self._sleepers, (self._now + max(0, seconds), next(self._order), woken))
        await woken

    async def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Result of a coroutine, for which the clock jumps to the next deadline whenever everything waits.

        Sleepers wake by deadline, then by arrival, and each sees the time that it slept until.

        Raises:
            RuntimeError: everything waits, and nobody sleeps. The coroutine has been cancelled.
        """
        task = asyncio.ensure_future(coroutine)
        try:
            while True:
                for _ in range(_SETTLING_ROUNDS):
                    await asyncio.sleep(0)
                if task.done():
                    return task.result()
                if not self._sleepers:
                    raise RuntimeError("everything waits, and nothing for the clock")
                deadline, _, woken = heappop(self._sleepers)
                # Done: its sleeper has been cancelled.
                if not woken.done():
                    self._now = deadline
                    woken.set_result(None)
        finally:
            await reap([task])
