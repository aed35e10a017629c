"""Places for code that cannot await: a thread keeps the event loop that they are served from.

So leases stay alive while the caller computes, and any number of episodes is under way at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, Self, TypeVar

from rocknroll.envs.places import Episode, Patience, open_places
from rocknroll.envs.text import Family, Task
from rocknroll.sandbox.errors import FleetClosed
from rocknroll.sandbox.runtimes.base import Runtime

Result = TypeVar("Result")


class BlockingPlaces:
    """Places of one family, for `count` episodes at once. Close it, or use it in a `with` statement.

    Raises:
        EnvDataError: data is missing. SandboxError: sandboxes cannot be had here.
    """

    def __init__(
        self, family: Family, count: int, patience: Patience | None = None, runtime: Runtime | None = None
    ) -> None:
        self.family, self.count = family, count
        self._stack = AsyncExitStack()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"{family.name} places", daemon=True)
        self._thread.start()
        try:
            family.prepare()
            opening = open_places(family, count, patience or Patience(), runtime)
            self._places = self.call(self._stack.enter_async_context(opening))
        except BaseException:
            self.close()
            raise

    def episode(self, owner: str, task: Task) -> Episode:
        """An episode that has not begun; await its methods through `call`."""
        return Episode(self._places, owner, task)

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Await `work` on the loop of the places; a caller that is interrupted (Ctrl-C) cancels it.

        Raises:
            FleetClosed: the places are.
        """
        if self._loop.is_closed():
            work.close()
            raise FleetClosed("the environments were closed")
        waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return waiting.result()
        except BaseException:
            waiting.cancel()
            raise

    def close(self) -> None:
        """End every episode, every sandbox and the thread. Idempotent."""
        if self._loop.is_closed():
            return
        try:
            self.call(self._stack.aclose())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
