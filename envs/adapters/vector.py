"""Any family as a Gymnasium vector environment, each member in a leased sandbox; all step at the same time.

`gymnasium.make_vec("rocknroll/AlfWorld-v0", num_envs=8)` makes one. Its members begin anew in the step
after their end (`AutoresetMode.NEXT_STEP`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Self, TypeAlias

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rocknroll.envs import spaces
from rocknroll.envs.blocking import BlockingPlaces
from rocknroll.envs.places import Episode, Patience
from rocknroll.envs.registry import family as make_family
from rocknroll.envs.text import EnvDataError, Family
from rocknroll.sandbox.errors import SandboxError
from rocknroll.sandbox.runtimes.base import Runtime

Texts: TypeAlias = tuple[str, ...]
Stepped: TypeAlias = tuple[Texts, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]
Member: TypeAlias = tuple[str, float, bool, bool, Mapping[str, Any]]
RESET_MASK = "reset_mask"


class MembersLost(SandboxError):
    """Infrastructure failed some members; the others went on.

    `failures` has the error of each that failed. `results` is what `step` would have returned (or `reset`, with the
    rewards left out), with an empty observation and the reward NaN for those. They begin anew with
    `reset(options={"reset_mask": mask})`.
    """

    kind = "members_lost"

    def __init__(self, failures: Mapping[int, SandboxError], results: Any) -> None:
        super().__init__("; ".join(f"member {index}: {error}" for index, error in failures.items()))
        self.failures, self.results = dict(failures), results

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Shape [num_envs]; True for those that failed."""
        mask = np.zeros(len(self.results[0]), dtype=np.bool_)
        mask[list(self.failures)] = True
        return mask


class SandboxVectorEnv(VectorEnv[Texts, Texts, NDArray[Any]]):
    """`num_envs` members that play tasks of one family. Close it, or use it in a `with` statement.

    Raises:
        UnknownFamily, pydantic.ValidationError, EnvDataError: as `registry.family`.
        SandboxError: sandboxes cannot be had here.
    """

    def __init__(
        self,
        num_envs: int,
        family: str | Family,
        config: Mapping[str, Any] | None = None,
        split: str = "train",
        patience: Patience | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        """`split`: where tasks come from when `reset` names none."""
        self.closed = True
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs = num_envs
        self.single_observation_space = self.single_action_space = spaces.text()
        self.observation_space = self.action_space = batch_space(self.single_action_space, num_envs)
        made = make_family(family, config) if isinstance(family, str) else family
        self._places = BlockingPlaces(made, num_envs, patience, runtime)
        self.closed = False
        self._tasks = {task.id: task for task in made.tasks(split)}
        self._split = split
        self._random = [np_random()[0] for _ in range(num_envs)]
        self._members: list[Episode | None] = [None] * num_envs
        self._texts = [""] * num_envs

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Texts, dict[str, Any]]:
        """Begin an episode in every member, or in those of `options["reset_mask"]` (bool, [num_envs]).

        Args:
            seed: of every member, or of the first, from which the others count up; decides which tasks are drawn.
            options: `tasks` names one for each member, by id.

        Raises:
            MembersLost: some could not begin. EnvDataError: there is no such task.
        """
        options = dict(options or {})
        mask = np.asarray(options.pop(RESET_MASK, np.ones(self.num_envs)), dtype=np.bool_)
        wanted = options.pop("tasks", [None] * self.num_envs)
        if options or len(wanted) != self.num_envs or mask.shape != (self.num_envs,):
            raise EnvDataError(f"reset takes the options `tasks` and `{RESET_MASK}`, of one entry for each member")
        seeds = [None] * self.num_envs if seed is None else seed
        if isinstance(seeds, int):
            seeds = range(seeds, seeds + self.num_envs)
        chosen = [index for index in range(self.num_envs) if mask[index]]
        for index in chosen:
            if seeds[index] is not None:
                self._random[index], _ = np_random(seeds[index])
        begun = [self._begin(index, wanted[index], seeds[index]) for index in chosen]
        texts, _, _, _, info = self._gathered(dict(zip(chosen, begun, strict=True)))
        return texts, info

    def step(self, actions: Sequence[str]) -> Stepped:
        """One action for each member; those that ended before begin anew instead.

        Raises:
            MembersLost: infrastructure failed some. gymnasium.error.ResetNeeded: one was not begun.
        """
        for index, member in enumerate(self._members):
            if member is None:
                raise ResetNeeded(f"call reset() before step(): no episode of member {index} has begun, or it was lost")
        return self._gathered({index: self._play(index, action) for index, action in enumerate(actions)})

    def close_extras(self, **_: Any) -> None:
        """End every sandbox."""
        self._places.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _play(self, index: int, action: str) -> Member:
        member = self._members[index]
        assert member is not None
        return await (member.step(str(action)) if member.open else self._begin(index))

    async def _begin(self, index: int, task_id: str | None = None, seed: int | None = None) -> Member:
        before, self._members[index] = self._members[index], None
        if before is not None:
            await before.end()
        task_id = str(self._random[index].choice(list(self._tasks))) if task_id is None else task_id
        if task_id not in self._tasks:
            raise EnvDataError(f"the split {self._split!r} of {self._places.family.name} has no task {task_id!r}")
        episode = self._places.episode(f"vector/{index}", self._tasks[task_id])
        text, info = await episode.reset(seed)
        self._members[index] = episode
        return text, 0.0, False, False, info

    def _gathered(self, work: Mapping[int, Coroutine[Any, Any, Member]]) -> Stepped:
        """Do what each member has to do, all at once, and batch what comes of it."""
        done = self._places.call(_all(list(work.values())))
        rewards, ends = np.full(self.num_envs, np.nan), np.zeros((2, self.num_envs), dtype=np.bool_)
        infos: dict[str, Any] = {}
        failures: dict[int, SandboxError] = {}
        for index, outcome in zip(work, done, strict=True):
            if isinstance(outcome, SandboxError):
                self._members[index], self._texts[index] = None, ""
                failures[index] = outcome
                continue
            if isinstance(outcome, BaseException):
                raise outcome
            self._texts[index], rewards[index], ends[0, index], ends[1, index], info = outcome
            infos = self._add_info(infos, dict(info), index)
        results = tuple(self._texts), rewards, ends[0], ends[1], infos
        if failures:
            raise MembersLost(failures, results)
        return results


async def _all(work: Sequence[Coroutine[Any, Any, Member]]) -> list[Member | BaseException]:
    return await asyncio.gather(*work, return_exceptions=True)


def _of(family: str) -> Callable[..., SandboxVectorEnv]:
    """What Gymnasium calls for `make_vec` of a family's id."""

    def make(num_envs: int = 1, **kwargs: Any) -> SandboxVectorEnv:
        return SandboxVectorEnv(num_envs, family, **kwargs)

    return make


alfworld, code, countdown, judge, math, swebench = map(
    _of, ("alfworld", "code", "countdown", "judge", "math", "swebench")
)
