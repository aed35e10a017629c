"""Batch-level rollouts step together, and nobody waits for an episode that is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rocknroll.envs.text import Task
from rocknroll.trainer.rollout.barrier import TurnBarrier

pytestmark = pytest.mark.asyncio
TASK = Task("t", "kind")


class Counting:
    """Writes down who stepped, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []

    @asynccontextmanager
    async def lease(self, owner: str, task: Task) -> AsyncIterator[Any]:
        yield _CountingEnv(owner, self.log)


class _CountingEnv:
    def __init__(self, owner: str, log: list[str]) -> None:
        self._owner = owner
        self._log = log

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        return "", {}

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._log.append(f"{self._owner}{action}")
        return "", 0.0, False, False, {}


async def play(barrier: TurnBarrier, owner: str, steps: int, pause: int = 3) -> None:
    async with barrier.lease(owner, TASK) as environment:
        for step in range(steps):
            for _ in range(pause):
                await asyncio.sleep(0)
            await environment.step(str(step))


async def test_no_step_begins_before_the_slowest_has_its_action() -> None:
    inner = Counting()
    barrier = TurnBarrier(inner)
    await asyncio.gather(play(barrier, "a", 3), play(barrier, "b", 3, pause=5), play(barrier, "c", 3, pause=20))
    assert [sorted(inner.log[i : i + 3]) for i in (0, 3, 6)] == [[f"{o}{i}" for o in "abc"] for i in range(3)]


async def test_an_episode_that_is_over_or_cancelled_holds_nobody_up() -> None:
    inner = Counting()
    barrier = TurnBarrier(inner)
    stuck = asyncio.create_task(play(barrier, "c", 9, pause=10**9))
    short, long = asyncio.create_task(play(barrier, "a", 1)), asyncio.create_task(play(barrier, "b", 4))
    for _ in range(20):
        await asyncio.sleep(0)
    assert inner.log == []
    stuck.cancel()
    await asyncio.wait_for(asyncio.gather(short, long), 5)
    assert [entry for entry in inner.log if entry[0] == "b"] == ["b0", "b1", "b2", "b3"]
