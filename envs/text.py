"""Conventions that all text environments share, and what a trainer needs to know of one.

An environment is an ordinary Gymnasium environment whose observations and actions are strings.
Its *family* lists its tasks, knows how to make the environment inside a sandbox (by import name,
so that the trainer's process never imports the engine) and, where there is one, plays the expert.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pydantic import BaseModel

Progress = Callable[[int, int], None]
"""Called with (done, total) while long work goes on."""


@dataclass(frozen=True)
class Task:
    """One episode to play. `options` is passed to `reset(options=…)` and must be JSON."""

    id: str
    kind: str
    """Task type, for metrics by type."""
    options: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    """Which of a run's environments plays it; given by the run."""


@dataclass(frozen=True)
class ExpertStep:
    """What the expert saw and did."""

    observation: str
    action: str
    admissible: tuple[str, ...] = ()
    imitate: bool = True
    """False for a mistake that was put in so that the expert shows how to go on from it."""


@dataclass(frozen=True)
class ExpertEpisode:
    """One solved task: the observation before each action. The last action solves the task."""

    task_id: str
    kind: str
    steps: tuple[ExpertStep, ...]


class Family(Protocol):
    """A configured environment family; constructing one is cheap, `prepare` does the work."""

    name: str
    entry_point: str
    """`package.module:Class` of the Gymnasium environment, imported inside the sandbox."""
    instructions: str
    """System prompt for chat models: what the task is and how to answer."""
    noop: str
    """An action that does nothing, or hands in nothing."""

    @property
    def config(self) -> BaseModel:
        """The family's checked settings; its model refuses unknown keys."""

    def prepare(self, progress: Progress | None = None) -> None:
        """Make or check the data this family needs; idempotent, cached by content.

        Raises:
            EnvDataError: data is missing or broken; the text says what to do.
        """

    def env_kwargs(self) -> Mapping[str, Any]:
        """Keyword arguments (JSON) for the class at `entry_point`."""

    def data_folders(self) -> Sequence[Path]:
        """Folders that an environment in a sandbox must be able to read."""

    def content_key(self) -> str:
        """Hash of everything that decides the tasks and expert episodes (configuration, versions)."""

    def vocabulary(self) -> Sequence[str]:
        """Words that any task may use, beyond those in the expert's episodes; for tokenizers made here."""

    def tasks(self, split: str) -> Sequence[Task]:
        """Tasks of a split (`train`, `seen`, `unseen`) in a fixed order that depends on the configuration alone."""

    def expert_episodes(
        self, split: str, count: int, seed: int, *, mistakes: float = 0.0, progress: Progress | None = None
    ) -> Sequence[ExpertEpisode]:
        """Episodes of the expert on the first `count` tasks of the split (unsolved ones left out).

        `mistakes`: chance that a plausible command which the environment does not admit comes before a
        command of the expert's; it is marked `imitate=False`.
        """

    def disguise_task(self, task: Task, seed: int) -> Task:
        """The training task as one visit plays it: the same task in another surface, or itself.

        A small policy that meets a game twice learns the game by heart; a family that can show it
        otherwise each time (renamed things, shuffled lists) does it here. A pure function of its arguments.
        """

    def disguise_episode(self, episode: ExpertEpisode, seed: int) -> ExpertEpisode:
        """The same for an expert episode on a training task."""


class TextEnvironment(Protocol):
    """Gymnasium's two calls, awaited. Infrastructure that fails raises a SandboxError; it is never a reward."""

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]: ...

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]: ...


@runtime_checkable
class Concludes(Protocol):
    """An environment that can say what unfinished work is worth, when the policy has no room left to go on."""

    async def conclude(self) -> tuple[float, dict[str, Any]]:
        """Reward for the work as it is, and what `info` would be."""


class Places(Protocol):
    """Where episodes are played, many at once."""

    def lease(self, owner: str, task: Task) -> AbstractAsyncContextManager[TextEnvironment]:
        """An environment for one episode of `task`; what it used is given back at the end, recycled after a failure.

        Raises:
            SandboxError: none can be had.
        """


@runtime_checkable
class OutsideFamily(Protocol):
    """A family whose environment runs in the trainer's process and only works in sandboxes.

    For what must not be inside with the policy's commands: hidden tests, expected answers, a way to the network.
    """

    def places(self, count: int) -> AbstractAsyncContextManager[Places]:
        """Open what episodes need, for `count` of them at once.

        Raises:
            EnvDataError: data is missing. SandboxError: sandboxes cannot be had here.
        """


@runtime_checkable
class Preloads(Protocol):
    """A family whose environment imports, only when it is made, modules that its entry point does not name."""

    def modules(self) -> Sequence[str]:
        """Their names; imported once for all sandboxes, and visible inside with the folder they are in."""


class EnvDataError(Exception):
    """An environment's data is missing, incomplete or corrupt."""
