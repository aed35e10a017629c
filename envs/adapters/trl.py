"""Any family as TRL has environments: `GRPOTrainer(environment_factory=…)`. Needs nothing of TRL.

TRL makes one instance for each generation of a batch and keeps them; `reset` gets a row of the data
set, public methods are the policy's tools, and what `get_reward` returns is added to the rewards. An
exception of a tool becomes text that the policy reads. So a lost sandbox cannot stop an episode
there: it is played again on a fresh one as far as it had come, or else has no reward (None).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from weakref import WeakSet

from rocknroll.envs.blocking import BlockingPlaces
from rocknroll.envs.places import Episode, Patience
from rocknroll.envs.registry import family as make_family
from rocknroll.envs.text import EnvDataError, Family, Task
from rocknroll.sandbox.errors import FleetClosed, FleetExhausted, SandboxError, SandboxLost, SpecInvalid
from rocknroll.sandbox.runtimes.base import Runtime

SPLITS = ("train", "seen", "unseen")
TOOL = "Give each of your answers by calling the tool `act` with it, one at a time."
OVER = "\n[The episode is over.]"
HOPELESS = (FleetExhausted, FleetClosed, SpecInvalid)
"""What every further episode would meet, too: the trainer has to stop."""


class EpisodeOver(RuntimeError):
    """The policy called its tool after the end."""


class ReplayDiffers(SandboxLost):
    """A sandbox was lost, and the episode did not repeat itself on another, so it cannot be gone on with."""


@dataclass(frozen=True)
class Turn:
    """What the policy did, and what came of it."""

    action: str
    observation: str
    reward: float
    done: bool


class TrlEnvironment:
    """One rollout at a time. Made by `TrlEnvironments`; what has no underscore is for reward functions.

    It has no public method but `reset`, `get_reward` and the tool, for TRL would show others to the policy.
    """

    def __init__(self, pool: TrlEnvironments) -> None:
        self.turns: list[Turn] = []
        self.info: Mapping[str, Any] = {}
        """Of the last step."""
        self.done = True
        self.lost = ""
        """What infrastructure the rollout was lost to; empty for one that counts."""
        self._pool = pool
        self._episode: Episode | None = None
        self._seed: int | None = None
        self._first = ""
        self._worth = 0.0

    @property
    def reward(self) -> float:
        """Of all turns."""
        return sum(turn.reward for turn in self.turns) + self._worth

    def reset(self, task: str = "", seed: int | None = None, **row: Any) -> str:
        """Begin the task with this id, on a leased sandbox; columns of the row that it does not know are ignored.

        Raises:
            EnvDataError: there is no such task. FleetExhausted, FleetClosed, SpecInvalid: nothing can be played.
        """
        self._end()
        self.turns, self.info, self.done, self.lost, self._worth = [], {}, True, "", 0.0
        self._task, self._seed = self._pool.task(task), seed
        failure: SandboxError | None = None
        for _ in range(1 + self._pool.replays):
            try:
                self._first = self._begin()
                return self._first
            except HOPELESS:
                raise
            except SandboxError as error:
                failure = error
        assert failure is not None
        self._lose(failure)
        return "[The environment cannot be reached.]"

    def act(self, command: str) -> str:
        """
        Give an answer to the environment, and read what it replies.

        Args:
            command: One command or answer, exactly as the task asks for it.

        Returns:
            What the environment replies.
        """
        if not isinstance(command, str):
            raise TypeError(f"`command` has to be text, not {type(command).__name__}")
        if self.lost:
            raise SandboxLost(f"this rollout was lost to infrastructure: {self.lost}")
        if self.done:
            raise EpisodeOver("the episode is over; nothing more can be done")
        try:
            turn = self._step(command)
        except SandboxError as failure:
            turn = self._replayed(command, failure)
        return turn.observation + (OVER if self.done else "")

    def get_reward(self) -> float | None:
        """End the rollout and return its reward; None if infrastructure lost it.

        TRL gives a rollout without any reward no advantage and leaves it out of its group's baseline.
        """
        if self._episode is not None and not self.done:
            try:
                self._worth = self._pool.places.call(self._episode.conclude())
            except SandboxError as failure:
                self._lose(failure)
            self.done = True
        return None if self.lost else self.reward

    def _begin(self) -> str:
        self._episode = self._pool.places.episode(f"trl/{self._task.id}", self._task)
        text, self.info = self._pool.places.call(self._episode.reset(self._seed))
        self.done = False
        return text

    def _step(self, command: str) -> Turn:
        assert self._episode is not None, "a rollout that is not done has an episode"
        text, reward, terminated, truncated, self.info = self._pool.places.call(self._episode.step(command))
        self.done = terminated or truncated
        turn = Turn(command, text, float(reward), self.done)
        self.turns.append(turn)
        return turn

    def _replayed(self, command: str, failure: SandboxError) -> Turn:
        """The turn that `failure` kept from happening, on a fresh sandbox that was brought to where the old one was."""
        played = self.turns
        for _ in range(self._pool.replays):
            self.turns = []
            try:
                same = self._begin() == self._first and all(self._step(turn.action) == turn for turn in played)
                if not same:
                    raise ReplayDiffers(f"the episode did not repeat itself after: {failure}") from failure
                turn = self._step(command)
            except ReplayDiffers as differs:
                failure = differs
                break
            except SandboxError as again:
                failure = again
            else:
                self._pool.replayed[failure.kind] += 1
                return turn
        self.turns = played
        self._lose(failure)
        raise failure

    def _lose(self, failure: SandboxError) -> None:
        self.done, self.lost = True, f"{type(failure).__name__}: {failure}"
        self._pool.lost[failure.kind] += 1
        self._end(failure)

    def _end(self, error: BaseException | None = None) -> None:
        """Give the lease back, if it is held."""
        if self._episode is not None and self._episode.open:
            self._pool.places.call(self._episode.end(error))


class TrlEnvironments:
    """The factory: `GRPOTrainer(environment_factory=environments)`. Close it, or use it in a `with` statement.

    Args:
        family: its name, `package.module:Class`, or a family that is made.
        count: rollouts at once in this process: TRL's `generation_batch_size` by the number of processes.
        replays: times that a rollout whose sandbox is lost is played again as far as it had come.

    Raises:
        UnknownFamily, pydantic.ValidationError, EnvDataError: as `registry.family`.
        SandboxError: sandboxes cannot be had here.
    """

    def __init__(
        self,
        family: str | Family,
        config: Mapping[str, Any] | None = None,
        *,
        count: int,
        replays: int = 1,
        patience: Patience | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self.family = make_family(family, config) if isinstance(family, str) else family
        self.replays = replays
        self.lost: Counter[str] = Counter()
        """Rollouts without a reward, by the kind of error (`SandboxError.kind`)."""
        self.replayed: Counter[str] = Counter()
        """Losses that a fresh sandbox made good, by kind."""
        self.places = BlockingPlaces(self.family, count, patience, runtime)
        self._tasks = {task.id: task for split in SPLITS for task in self.family.tasks(split)}
        self._shape = type(self.family.name, (TrlEnvironment,), {})
        self._made: WeakSet[TrlEnvironment] = WeakSet()

    def __call__(self) -> TrlEnvironment:
        """An environment for one rollout at a time; TRL keeps it.

        Raises:
            SpecInvalid: there are `count` of them already, so one would wait for ever for a sandbox.
        """
        if len(self._made) >= self.places.count:
            raise SpecInvalid(
                f"TRL wants more than count={self.places.count} rollouts at once; set `count` to its"
                " generation_batch_size (per_device_train_batch_size × steps_per_generation of each process), or to"
                " per_device_eval_batch_size where that is larger"
            )
        made: TrlEnvironment = self._shape(self)
        self._made.add(made)
        return made

    def rows(self, split: str = "train", count: int | None = None) -> list[dict[str, Any]]:
        """The first `count` tasks of a split for `datasets.Dataset.from_list`: `prompt` (messages) and `task` (id)."""
        instructions = f"{self.family.instructions}\n\n{TOOL}".strip()
        prompt = [{"role": "system", "content": instructions}, {"role": "user", "content": ""}]
        return [{"prompt": prompt, "task": task.id} for task in self.family.tasks(split)[:count]]

    def task(self, task_id: str) -> Task:
        """The task with this id.

        Raises:
            EnvDataError: there is none.
        """
        if task_id not in self._tasks:
            raise EnvDataError(
                f"{self.family.name} has no task {task_id!r}; rows of the data set need a column `task` with the id of"
                " one, as `TrlEnvironments.rows` makes them, for all rollouts of a group have to play the same"
            )
        return self._tasks[task_id]

    def close(self) -> None:
        """End every sandbox. Idempotent."""
        self.places.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
