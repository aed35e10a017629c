"""Play one episode: environment text in, action tokens out, a trajectory at the end.

Whatever goes wrong below (a lost sandbox, a hung environment, a failed generation, a deadline passed)
becomes a trajectory with outcome `infra_error` and its cause; it is never a reward and never an
exception in the rollout loop. A cancelled episode leaves nothing behind: its sandbox is recycled, its
request ended, its context freed.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from typing import Any, Protocol

import numpy as np

from rocknroll.envs.text import Concludes, Places, Task, TextEnvironment
from rocknroll.sandbox.errors import EnvError
from rocknroll.trainer.engines.base import Engine, EngineError, Generation, Request, Sampling
from rocknroll.trainer.render import PolicyError, Renderer
from rocknroll.trainer.rewards.workers import EpisodeText, Reward, TextTurn
from rocknroll.trainer.rollout.faults import HOPELESS, INFRASTRUCTURE, EpisodeTimeout, cause_of, describe
from rocknroll.trainer.trajectory import NO_VERSION, Outcome, Trajectory, Turn

KNOWN_COMMANDS = 65_536
"""Commands whose tokens are remembered: the same few thousand are offered turn after turn."""
REDOS = 8
"""Times that one turn begins anew because new weights cut it off: more means that they come faster than turns end."""


class Rewards(Protocol):
    """What the player needs of `rewards.workers.RewardWorkers`."""

    async def score(self, task: Task, episode: EpisodeText) -> Reward:
        """Raises RewardFailed when none can be computed."""


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
    timeout_s: float = math.inf
    """From the moment an episode has its environment."""


@dataclass(frozen=True)
class _Plan:
    """What is to be played."""

    id: str
    task: Task
    sampling: Sampling
    engine: int


@dataclass
class _Record:
    """A trajectory being written."""

    tokens: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    allowed: list[tuple[int, ...]] | None = None
    said: list[TextTurn] = field(default_factory=list)
    """The turns as text."""
    timings_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    measured: dict[str, float] = field(default_factory=dict)

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

    def __init__(
        self,
        environments: Places,
        engine: Engine,
        renderer: Renderer,
        options: PlayOptions,
        rewards: Rewards | None = None,
    ) -> None:
        """`rewards`: what finished episodes are worth beside what the environment gives."""
        self._environments = environments
        self._rewards = rewards
        self._engine = engine
        self._renderer = renderer
        self._options = options
        self._say = lru_cache(maxsize=KNOWN_COMMANDS)(self._words_of)

    async def play(
        self,
        episode_id: str,
        group_id: str,
        task: Task,
        *,
        temperature: float | None = None,
        seed: int | None = None,
        engine: int = 0,
        leave: Callable[[], None] = lambda: None,
    ) -> Trajectory:
        """Play `task` to its end.

        Args:
            seed: makes the sampled actions a function of weights, task and seed.
            engine: which of several engines generates them.
            leave: called when the environment is given back and there is still something to do.

        Raises:
            FleetExhausted, FleetClosed, EnginesExhausted: nothing can be played, now or later.
        """
        record = _Record()
        outcome, success, error, cause = Outcome.INFRA_ERROR, False, "", ""
        sampling = Sampling(
            temperature=self._options.temperature if temperature is None else temperature,
            max_tokens=self._options.max_action_tokens,
            stop_ids=tuple(self._renderer.stop_ids),
            seed=seed,
        )
        with record.timed("total"):
            try:
                outcome, success = await self._episode(_Plan(episode_id, task, sampling, engine), record)
                if self._rewards is not None and record.turns:
                    leave()
                    await self._score(self._rewards, task, success, record)
            except HOPELESS:
                raise
            except INFRASTRUCTURE as failure:
                outcome, success = Outcome.INFRA_ERROR, False
                cause, error = cause_of(failure), describe(failure)
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
            cause=cause,
            domain=task.domain,
            timings_s=dict(record.timings_s),
            measured=record.measured,
        )

    async def _episode(self, plan: _Plan, record: _Record) -> tuple[Outcome, bool]:
        asked = time.perf_counter()
        try:
            async with self._environments.lease(owner=plan.id, task=plan.task) as environment:
                record.timings_s["queue"] = time.perf_counter() - asked
                return await self._in_time(environment, plan, record)
        finally:
            await self._engine.release(plan.id)

    async def _score(self, rewards: Rewards, task: Task, success: bool, record: _Record) -> None:
        """Add the episode's own reward to that of its last turn."""
        with record.timed("reward"):
            reward = await rewards.score(task, EpisodeText(tuple(record.said), success))
        last = record.turns[-1]
        record.turns[-1] = replace(last, reward=last.reward + reward.value)

    async def _in_time(self, environment: TextEnvironment, plan: _Plan, record: _Record) -> tuple[Outcome, bool]:
        """The turns under the episode's deadline; a deadline inside the lease leaves the sandbox time to go."""
        limit_s = self._options.timeout_s
        deadline = asyncio.timeout(None if math.isinf(limit_s) else limit_s)
        try:
            async with deadline:
                return await self._turns(environment, plan, record)
        except TimeoutError:
            if not deadline.expired():
                raise
            spent = ", ".join(f"{s:.1f} s in {where}" for where, s in record.timings_s.items() if where != "queue")
            raise EpisodeTimeout(
                f"{plan.task.id} was not over after {limit_s:g} s (`rollout.episode_timeout_s`), in turn"
                f" {len(record.turns) + 1}: {spent or 'nothing was answered'}"
            ) from None

    async def _turns(self, environment: TextEnvironment, plan: _Plan, record: _Record) -> tuple[Outcome, bool]:
        options = self._options
        with record.timed("environment"):
            observation, info = await environment.reset(options=plan.task.options)
        record.observe(self._renderer.first(observation))
        for turn in count():
            if len(record.tokens) + options.max_action_tokens > options.max_length:
                return await self._conclude(environment, record)
            with record.timed("generate"):
                generation = await self._generate(self._request(plan, turn, record, info))
            start = len(record.tokens)
            record.act(generation)
            command = self._renderer.action_text(generation.token_ids)
            before, seen = info, observation
            with record.timed("environment"):
                observation, reward, terminated, truncated, info = await environment.step(command)
            record.said.append(TextTurn(seen, command, float(reward)))
            record.turns.append(self._turn(start, len(record.tokens), float(reward), before, info))
            if terminated or truncated:
                record.measured = measured(info)
                won = bool(info.get("won", terminated and reward > 0))
                return (Outcome.COMPLETED, won) if terminated else (Outcome.TRUNCATED, won)
            if generation.finish_reason == "length":
                record.observe(list(self._renderer.close_ids))
            record.observe(self._renderer.following(observation))
        raise AssertionError("an episode ends by terminating, truncating or filling the context")

    async def _conclude(self, environment: TextEnvironment, record: _Record) -> tuple[Outcome, bool]:
        """The context is full: what was done so far counts, where the environment can judge that."""
        if not isinstance(environment, Concludes) or not record.turns:
            return Outcome.TRUNCATED, False
        with record.timed("environment"):
            reward, info = await environment.conclude()
        record.measured = measured(info)
        last = record.turns[-1]
        record.turns[-1] = replace(last, reward=last.reward + reward)
        return Outcome.TRUNCATED, bool(info.get("won", False))

    def _turn(self, start: int, end: int, reward: float, before: Mapping[str, Any], after: Mapping[str, Any]) -> Turn:
        """What an action brought; `before` and `after` are what the environment told around it."""
        if not math.isfinite(reward):
            raise EnvError(f"a step returned the reward {reward}, which nothing can be learnt from")
        options = self._options
        invalid, progress = bool(after.get("invalid_action", False)), float(before.get("progress", 0.0))
        reward -= options.turn_penalty + options.invalid_action_penalty * invalid
        reward += options.progress_reward * (float(after.get("progress", 0.0)) - progress)
        return Turn(start, end, reward, not invalid, str(before.get("state_hash", "")), progress)

    async def _generate(self, request: Request) -> Generation:
        """One action. A turn that new weights cut off (`rollout.in_flight: abort`) is played again from its start."""
        for _ in range(REDOS + 1):
            generation = await self._engine.generate(request)
            if generation.finish_reason != "abort":
                return generation
        raise EngineError(
            f"new weights cut request {request.id} off {REDOS + 1} times in a row, for they come faster than its"
            " tokens; `rollout.in_flight: recompute` lets it go on"
        )

    def _request(self, plan: _Plan, turn: int, record: _Record, info: Mapping[str, Any]) -> Request:
        choices = None
        if self._options.constrained:
            said = map(self._say, info["admissible_commands"])
            choices = [ids for ids in said if ids is not None]
        sampling = plan.sampling
        if sampling.seed is not None:
            sampling = replace(sampling, seed=sampling.seed + turn)
        return Request(f"{plan.id}/{turn}", plan.id, tuple(record.tokens), sampling, choices, plan.engine)

    def _words_of(self, command: str) -> list[int] | None:
        """Tokens of a command; None when it has a word that the policy's vocabulary lacks, so it is no choice."""
        try:
            return self._renderer.action_ids(command)
        except PolicyError:
            return None


def measured(info: Mapping[str, Any]) -> dict[str, float]:
    """What an environment measured, from the last info of an episode.

    Raises:
        EnvError: it is not numbers by name.
    """
    metrics = info.get("metrics", {})
    try:
        return {str(name): float(value) for name, value in metrics.items()}
    except (AttributeError, TypeError, ValueError):
        raise EnvError(f"a step returned the metrics {metrics!r}, which are not numbers by name") from None
