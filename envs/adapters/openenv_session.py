"""What one client of the OpenEnv server plays, and the tasks that it may ask for."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Coroutine
from typing import Any

from gymnasium.utils.seeding import np_random
from pydantic import ValidationError

from rocknroll.envs.adapters.openenv_wire import (
    EpisodeState,
    Reset,
    TextAction,
    TextObservation,
    error_frame,
    failure_frame,
    plain,
)
from rocknroll.envs.places import Episode
from rocknroll.envs.text import EnvDataError, Family, Places, Task
from rocknroll.envs.wire import NotTransportable
from rocknroll.sandbox.errors import EnvError, SandboxError

SPLITS = ("train", "seen", "unseen")
Reply = dict[str, Any]


class Refused(Exception):
    """A request that does not fit; the session goes on. The first argument is OpenEnv's error code."""


class Tasks:
    """A family's tasks, by id and by split."""

    def __init__(self, family: Family) -> None:
        self._splits = {split: list(family.tasks(split)) for split in SPLITS}
        self._by_id = {task.id: task for tasks in self._splits.values() for task in tasks}

    def choose(self, wish: Reset) -> Task:
        """Raises EnvDataError where there is no such task."""
        if wish.task is not None:
            if wish.task not in self._by_id:
                raise EnvDataError(f"there is no task {wish.task!r}")
            return self._by_id[wish.task]
        tasks = self._splits[wish.split]
        if not tasks or (wish.index is not None and wish.index >= len(tasks)):
            raise EnvDataError(f"the split {wish.split!r} has {len(tasks)} tasks")
        return tasks[int(np_random(wish.seed)[0].integers(len(tasks))) if wish.index is None else wish.index]


class Session:
    """One episode after another, each in a lease of its own."""

    def __init__(self, places: Places, tasks: Tasks) -> None:
        self._id = secrets.token_hex(8)
        self._places, self._tasks = places, tasks
        self._episode: Episode | None = None
        self._state = EpisodeState()

    async def answer(self, text: str) -> Reply | None:
        """The reply to one request; None when the client says goodbye. Failures are replies, too."""
        try:
            request = json.loads(text)
        except ValueError as error:
            return error_frame("INVALID_JSON", f"not JSON: {error}")
        kind = request.get("type") if isinstance(request, dict) else None
        if kind == "close":
            return None
        known: dict[Any, Callable[[Any], Coroutine[Any, Any, Reply]]] = {
            "reset": self._reset,
            "step": self._step,
            "state": self._tell,
        }
        if not isinstance(kind, str) or kind not in known:
            return error_frame("UNKNOWN_TYPE", f"unknown message type {kind!r}; known: {', '.join(known)}, close")
        try:
            return await known[kind](request.get("data", {}))
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            return error_frame("VALIDATION_ERROR", "invalid message", errors=problems)
        except EnvDataError as error:
            return error_frame("VALIDATION_ERROR", str(error))
        except Refused as refused:
            return error_frame(*refused.args)
        except SandboxError as error:
            return failure_frame(error)

    async def end(self) -> None:
        """Give back what is held. Idempotent."""
        episode, self._episode = self._episode, None
        if episode is not None:
            await episode.end()

    async def _reset(self, data: Any) -> Reply:
        wish = Reset.model_validate(data)
        task = self._tasks.choose(wish)
        await self.end()
        self._state = EpisodeState(episode_id=wish.episode_id or secrets.token_hex(8), task=task.id)
        self._episode = Episode(self._places, f"openenv/{self._id}", task)
        text, info = await self._episode.reset(wish.seed)
        return await self._shown(text, None, False, False, info)

    async def _step(self, data: Any) -> Reply:
        action = TextAction.model_validate(data)
        if self._episode is None or not self._episode.open:
            raise Refused("SESSION_ERROR", "no episode is under way; reset first")
        text, reward, terminated, truncated, info = await self._episode.step(action.text)
        self._state.step_count += 1
        return await self._shown(text, reward, terminated, truncated, info)

    async def _tell(self, data: Any) -> Reply:
        return {"type": "state", "data": self._state.model_dump()}

    async def _shown(self, text: str, reward: float | None, terminated: bool, truncated: bool, info: Any) -> Reply:
        try:
            metadata = plain(info)
        except NotTransportable as error:
            await self.end()
            raise EnvError(str(error)) from None
        done = terminated or truncated
        return TextObservation(
            text=text, terminated=terminated, truncated=truncated, done=done, reward=reward, metadata=metadata
        ).frame()
