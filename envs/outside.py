"""`OutsideEnv`: the environment of an `OutsideFamily` as Gymnasium has it, synchronous and one at a time.

A thread keeps the event loop that its sandboxes are served from.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, Protocol, TypeVar

import gymnasium

from rocknroll.envs import spaces
from rocknroll.envs.text import EnvDataError, Family, OutsideFamily, Places, Task, TextEnvironment

Result = TypeVar("Result")


class PlayedOutside(Family, OutsideFamily, Protocol):
    """A family whose environment runs outside of its sandboxes."""


class OutsideEnv(gymnasium.Env[str, str]):
    """Plays tasks of a family. Close it, or use it in a `with` statement.

    Args:
        split: where tasks come from when `reset` names none.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012

    def __init__(self, family: PlayedOutside, split: str = "train", render_mode: str | None = None) -> None:
        self.family, self.split, self.render_mode = family, split, render_mode
        self.observation_space = spaces.text()
        self.action_space = spaces.text()
        self._tasks: list[Task] = []
        self._open: AsyncExitStack | None = None
        """Of the sandboxes, while there are any."""
        self._episode: AsyncExitStack | None = None
        self._env: TextEnvironment | None = None
        self._text = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="outside-env", daemon=True)
        self._thread.start()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin a task: the one that `options` has as `task` (its id), or one of the split, drawn by the seed.

        Raises:
            EnvDataError: there is no such task. SandboxError: what it needs cannot be had.
        """
        super().reset(seed=seed)
        task = self._choose(dict(options or {}))
        self._text, info = self._call(self._begin(task, seed))
        return self._text, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """One action.

        Raises:
            SandboxError: the infrastructure failed; only `reset` can go on from there.
        """
        if self._env is None:
            raise gymnasium.error.ResetNeeded("call reset() before step(): no episode is open")
        try:
            self._text, reward, terminated, truncated, info = self._call(self._env.step(action))
        except BaseException:
            self._call(self._end())
            raise
        if terminated or truncated:
            self._call(self._end())
        return self._text, reward, terminated, truncated, info

    def render(self) -> str | None:
        """The last observation."""
        return self._text if self.render_mode == "ansi" else None

    def close(self) -> None:
        """End the sandboxes and the thread. Idempotent."""
        if self._loop.is_closed():
            return
        self._call(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _choose(self, options: dict[str, Any]) -> Task:
        if not self._tasks:
            self.family.prepare()
            self._tasks = list(self.family.tasks(self.split))
        wanted = options.get("task")
        if wanted is not None:
            known = {task.id: task for task in self._tasks}
            if wanted not in known:
                raise EnvDataError(f"the split {self.split!r} of {self.family.name} has no task {wanted!r}")
            return known[wanted]
        if not self._tasks:
            raise EnvDataError(f"the split {self.split!r} of {self.family.name} has no task")
        return self._tasks[int(self.np_random.integers(len(self._tasks)))]

    async def _begin(self, task: Task, seed: int | None) -> tuple[str, dict[str, Any]]:
        await self._end()
        if self._open is None:
            stack = AsyncExitStack()
            self._places: Places = await stack.enter_async_context(self.family.places(1))
            self._open = stack
        episode = AsyncExitStack()
        env = await episode.enter_async_context(self._places.lease("outside-env", task))
        self._episode = episode
        try:
            observation, info = await env.reset(seed=seed, options=dict(task.options))
        except BaseException:
            await self._end()
            raise
        self._env = env
        return observation, info

    async def _end(self) -> None:
        """Give back what the episode holds."""
        episode, self._episode, self._env = self._episode, None, None
        if episode is not None:
            await episode.aclose()

    async def _shut(self) -> None:
        await self._end()
        if self._open is not None:
            await self._open.aclose()

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
