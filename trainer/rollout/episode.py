"""Play one episode: environment text in, action tokens out, a trajectory at the end.

Whatever goes wrong below (a lost sandbox, a hung environment, a failed generation) becomes a
trajectory with outcome `infra_error` and its cause; it is never a reward and never an exception in
the rollout loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from typing import Any, Protocol

import numpy as np

from rocknroll.envs.text import Task
from rocknroll.sandbox.errors import SandboxError
from rocknroll.trainer.engines.base import Engine, EngineError, Generation, Request, Sampling
from rocknroll.trainer.render import PolicyError, Renderer
from rocknroll.trainer.trajectory import NO_VERSION, Outcome, Trajectory, Turn

KNOWN_COMMANDS = 65_536
"""Commands whose tokens are remembered: the same few thousand are offered turn after turn."""


class Environment(Protocol):
    """A Gymnasium text environment that lives elsewhere."""

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]: ...

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]: ...


class Environments(Protocol):
    """Where episodes get their environment: leased for one episode, given back at its end."""

    def lease(self, owner: str) -> AbstractAsyncContextManager[Environment]:
        """Raises SandboxError when none can be had."""


@dataclass(frozen=True)
class PlayOptions:
    """How an episode is played; all of it from the recipe."""

    max_action_tokens: int
    max_length: int
    """Tokens the policy can hold; an episode that would not fit is truncated."""
    temperature: float
    constrained: bool
    invalid_action_penalty: float
    turn_penalty: float = 0.0
    progress_reward: float = 0.0
    step_latency_s: float = 0.0


@dataclass
class _Record:
    """A trajectory being written."""

    tokens: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    allowed: list[tuple[int, ...]] | None = None
    timings_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def observe(self, ids: list[int]) -> None:
        self.tokens += ids
        self.mask += [False] * len(ids)
        self.logprobs += [0.0] * len(ids)
        self.versions += [NO_VERSION] * len(ids)

    def act(self, generation: Generation) -> None:
        self.tokens += generation.token_ids
        self.mask += [True] * len(generation.token_ids)
        self.logprobs += generation.logprobs
        self.versions += generation.versions
        if generation.allowed is not None:
            self.allowed = [*(self.allowed or []), *generation.allowed]

    @contextmanager
    def timed(self, cause: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.timings_s[cause] += time.perf_counter() - start


class Player:
    """Plays episodes with one engine; safe to use from many tasks at once."""

    def __init__(self, environments: Environments, engine: Engine, renderer: Renderer, options: PlayOptions) -> None:
        self._environments = environments
        self._engine = engine
        self._renderer = renderer
        self._options = options
        self._say = lru_cache(maxsize=KNOWN_COMMANDS)(self._words_of)

    async def play(
        self, episode_id: str, group_id: str, task: Task, *, temperature: float | None = None, seed: int | None = None
    ) -> Trajectory:
        """Play `task` to its end. `seed` makes the sampled actions a function of weights, task and seed."""
        record = _Record()
        outcome, success, error = Outcome.INFRA_ERROR, False, ""
        sampling = Sampling(
            temperature=self._options.temperature if temperature is None else temperature,
            max_tokens=self._options.max_action_tokens,
            stop_ids=tuple(self._renderer.stop_ids),
            seed=seed,
        )
        with record.timed("total"):
            try:
                outcome, success = await self._episode(episode_id, task, sampling, record)
            except (SandboxError, EngineError) as failure:
                error = f"{type(failure).__name__}: {failure}"
            finally:
                await self._engine.release(episode_id)
        return Trajectory(
            id=episode_id,
            group_id=group_id,
            task_id=task.id,
            task_kind=task.kind,
            token_ids=np.array(record.tokens, dtype=np.int32),
            action_mask=np.array(record.mask, dtype=np.bool_),
            logprobs=np.array(record.logprobs, dtype=np.float32),
            versions=np.array(record.versions, dtype=np.int32),
            turns=tuple(record.turns),
            outcome=outcome,
            success=success,
            allowed=tuple(record.allowed) if record.allowed is not None else None,
            error=error,
            timings_s=dict(record.timings_s),
        )

    async def _episode(self, episode_id: str, task: Task, sampling: Sampling, record: _Record) -> tuple[Outcome, bool]:
        asked = time.perf_counter()
        async with self._environments.lease(owner=episode_id) as environment:
            record.timings_s["queue"] = time.perf_counter() - asked
            return await self._turns(environment, episode_id, task, sampling, record)

    async def _turns(
        self, environment: Environment, episode_id: str, task: Task, sampling: Sampling, record: _Record
    ) -> tuple[Outcome, bool]:
        options = self._options
        with record.timed("environment"):
            observation, info = await environment.reset(options=task.options)
        record.observe(self._renderer.first(observation))
        for turn in count():
            if len(record.tokens) + options.max_action_tokens > options.max_length:
                return Outcome.TRUNCATED, False
            with record.timed("generate"):
                generation = await self._engine.generate(self._request(episode_id, turn, record, sampling, info))
            start = len(record.tokens)
            record.act(generation)
            if generation.finish_reason == "abort":
                return Outcome.ABORTED, False
            command = self._renderer.action_text(generation.token_ids)
            state, progress = str(info.get("state_hash", "")), float(info.get("progress", 0.0))
            with record.timed("environment"):
                if options.step_latency_s:
                    await asyncio.sleep(options.step_latency_s)
                observation, reward, terminated, truncated, info = await environment.step(command)
            invalid = bool(info.get("invalid_action", False))
            shaped = float(reward) - options.turn_penalty - options.invalid_action_penalty * invalid
            shaped += options.progress_reward * (float(info.get("progress", 0.0)) - progress)
            record.turns.append(Turn(start, len(record.tokens), shaped, not invalid, state, progress))
            if terminated:
                return Outcome.COMPLETED, bool(info.get("won", reward > 0))
            if truncated:
                return Outcome.TRUNCATED, False
            if generation.finish_reason == "length":
                record.observe(list(self._renderer.close_ids))
            record.observe(self._renderer.following(observation))
        raise AssertionError("an episode ends by terminating, truncating or filling the context")

    def _request(
        self, episode_id: str, turn: int, record: _Record, sampling: Sampling, info: Mapping[str, Any]
    ) -> Request:
        choices = None
        if self._options.constrained:
            said = map(self._say, info["admissible_commands"])
            choices = [ids for ids in said if ids is not None]
        if sampling.seed is not None:
            sampling = replace(sampling, seed=sampling.seed + turn)
        return Request(f"{episode_id}/{turn}", episode_id, tuple(record.tokens), sampling, choices)

    def _words_of(self, command: str) -> list[int] | None:
        """Tokens of a command; None when it has a word that the policy's vocabulary lacks, so it is no choice."""
        try:
            return self._renderer.action_ids(command)
        except PolicyError:
            return None
