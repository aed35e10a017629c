"""The turn barrier of batch-level rollouts, as a baseline that asynchronous ones can be measured against.

All episodes under way step together: no step begins before every environment that still plays has its
action, so each turn takes as long as the slowest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from rocknroll.envs.text import Concludes, Places, Task, TextEnvironment


class TurnBarrier:
    """`Places` around others."""

    def __init__(self, inner: Places) -> None:
        self._inner = inner
        self._open = 0
        """Episodes under way."""
        self._waiting: list[asyncio.Future[None]] = []

    @asynccontextmanager
    async def lease(self, owner: str, task: Task) -> AsyncIterator[TextEnvironment]:
        """An environment whose steps wait for the others.

        Raises:
            SandboxError: no sandbox can be had.
        """
        async with self._inner.lease(owner, task) as environment:
            self._open += 1
            try:
                yield _Together(environment, self)
            finally:
                self._open -= 1
                self._pass()

    async def arrive(self) -> None:
        """Wait until every open episode has arrived."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            self._pass()
            await turn
        finally:
            if turn in self._waiting:  # cancelled
                self._waiting.remove(turn)

    def _pass(self) -> None:
        if len(self._waiting) >= self._open:
            for turn in self._waiting:
                if not turn.done():
                    turn.set_result(None)
            self._waiting.clear()


class _Together:
    """An environment that steps when all do."""

    def __init__(self, environment: TextEnvironment, barrier: TurnBarrier) -> None:
        self._environment = environment
        self._barrier = barrier

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        return await self._environment.reset(seed=seed, options=options)

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        await self._barrier.arrive()
        return await self._environment.step(action)

    async def conclude(self) -> tuple[float, dict[str, Any]]:
        return await self._environment.conclude() if isinstance(self._environment, Concludes) else (0.0, {})
