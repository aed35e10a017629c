"""What a trainer knows of code: its problems, and the environment, which runs in the trainer's process.

Only the candidate's program and the input of one test at a time are in a sandbox with what the policy wrote.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import gymnasium

from rocknroll.envs.hiding import hiding_runtime
from rocknroll.envs.outside import OutsideEnv
from rocknroll.envs.reasoning.code_answer import candidate_of
from rocknroll.envs.reasoning.code_config import MIB, CodeConfig
from rocknroll.envs.reasoning.code_exercises import exercises, words
from rocknroll.envs.reasoning.code_grading import Grader
from rocknroll.envs.reasoning.code_problem import CodeProblem, problem_of
from rocknroll.envs.reasoning.config import SPLITS
from rocknroll.envs.reasoning.sources import content_hash, read_splits
from rocknroll.envs.text import ExpertEpisode, ExpertStep, Progress, Task, TextEnvironment
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.spec import DEFAULT_IMAGE, Resources, SandboxSpec

INSTRUCTIONS = (
    "Solve the problem in Python 3. Think first, then give the whole program in one block that begins with ```python. "
    "Where a function is asked for, the block defines it and prints nothing; otherwise it reads standard input and "
    "prints the answer."
)
VERSION = 1
"""Of what is generated from a configuration."""
SCRATCH_BYTES = 32 * MIB


class CodeFamily:
    """A configured set of programming problems."""

    name = "code"
    entry_point = "rocknroll.envs.reasoning.code_family:CodeEnv"
    instructions = INSTRUCTIONS
    noop = "I do not know"

    def __init__(self, config: CodeConfig | Mapping[str, Any] | None = None) -> None:
        """
        Raises:
            pydantic.ValidationError: the configuration is impossible or has an unknown key.
        """
        self.config = config if isinstance(config, CodeConfig) else CodeConfig.model_validate(dict(config or {}))

    def prepare(self, progress: Progress | None = None) -> None:
        """Read the data, or see that there are as many exercises as asked for.

        Raises:
            EnvDataError: it cannot be read, rows are wrong, or there are too few exercises.
        """
        found = sum(len(problems) for problems in self._problems.values())
        if progress is not None:
            progress(found, found)

    def env_kwargs(self) -> dict[str, Any]:
        """Arguments of the environment class, as JSON."""
        return {"config": self.config.model_dump(mode="json")}

    def data_folders(self) -> list[Path]:
        """None: nothing of the data may be in a sandbox."""
        return []

    def content_key(self) -> str:
        """Hash of everything that decides tasks and expert episodes."""
        rows = [[p.id, p.question, p.solution] for split in SPLITS for p in self._problems[split]]
        return content_hash(VERSION, self.config.model_dump(mode="json"), rows if self.config.data else [])

    def vocabulary(self) -> list[str]:
        """Every word and sign of generated exercises; of data, nothing beyond what its experts say."""
        return [] if self.config.data else [*words(), "python", "`"]

    def tasks(self, split: str) -> list[Task]:
        """One task for each problem of a split."""
        return [Task(problem.id, problem.kind) for problem in self._problems[split]]

    def disguise_task(self, task: Task, seed: int) -> Task:
        """As it is."""
        return task

    def disguise_episode(self, episode: ExpertEpisode, seed: int) -> ExpertEpisode:
        """As it is."""
        return episode

    def expert_episodes(
        self, split: str, count: int, seed: int, *, mistakes: float = 0.0, progress: Progress | None = None
    ) -> list[ExpertEpisode]:
        """Known solutions of the first `count` problems of a split. `mistakes`: there are none; any answer ends it."""
        return [self._episode(problem) for problem in self._problems[split][:count] if problem.solution]

    @asynccontextmanager
    async def places(self, count: int) -> AsyncIterator[CodePlaces]:
        """Open the sandboxes that programs are tried in.

        Raises:
            EnvDataError: the data cannot be read. RuntimeUnavailable: sandboxes cannot be had here, or hide no files.
        """
        self.prepare()
        config = self.config
        at_once = min(count, config.sandboxes or 2 * len(os.sched_getaffinity(0)))
        runtime = await hiding_runtime(config.runtime, "code", "programs could read the expected outputs")
        # Of the interpreter that this process runs on nothing but the standard library is in a process sandbox.
        python = None if config.runtime == "docker" else (str(Path(sys.executable).resolve()),)
        async with Fleet(_spec(config), at_once, runtime) as fleet:
            yield CodePlaces(Grader(fleet, python, config), self._by_id, config.partial)

    @cached_property
    def _by_id(self) -> Mapping[str, CodeProblem]:
        return {problem.id: problem for problems in self._problems.values() for problem in problems}

    @cached_property
    def _problems(self) -> dict[str, list[CodeProblem]]:
        config = self.config
        if not config.data:
            return {split: [exercise.problem() for exercise in exercises(config, split)] for split in SPLITS}

        def reader(number: str, row: Mapping[str, Any]) -> CodeProblem:
            return problem_of(number, row, config.columns, config.max_tests)

        return read_splits(config.data, config.held_out, reader, skip_wrong_rows=config.skip_wrong_rows)

    def _episode(self, problem: CodeProblem) -> ExpertEpisode:
        # Exercises are for policies with a word tokenizer, which know no lines.
        said = (
            f"```python\n{problem.solution.strip()}\n```"
            if self.config.data
            else f"` ` ` python {problem.solution} ` ` `"
        )
        return ExpertEpisode(problem.id, problem.kind, (ExpertStep(problem.question, said),))


class CodePlaces:
    """Where programs are written and tried; any number of episodes at once share the sandboxes."""

    def __init__(self, grader: Grader, problems: Mapping[str, CodeProblem], partial: bool) -> None:
        self.grader, self._problems, self._partial = grader, problems, partial

    @asynccontextmanager
    async def lease(self, owner: str, task: Task) -> AsyncIterator[TextEnvironment]:
        """See `Places`; a sandbox is held only while a program is tried."""
        yield _Episode(self.grader, self._problems[task.id], owner, self._partial)


class _Episode:
    """One problem, one program."""

    def __init__(self, grader: Grader, problem: CodeProblem, owner: str, partial: bool) -> None:
        self._grader, self._problem, self._owner, self._partial = grader, problem, owner, partial
        self._open = False

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Show the problem."""
        self._open = True
        return self._problem.question, {"won": False}

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Try the program of the response.

        Raises:
            SandboxError: no sandbox can be had, or it was lost.
        """
        if not self._open:
            raise gymnasium.error.ResetNeeded("call reset() before step(): a problem takes one answer")
        self._open = False
        candidate = candidate_of(action)
        if candidate.problem:
            info = {"won": False, "invalid_action": True, "metrics": {"tests_passed": 0.0, "timed_out": 0.0}}
            return candidate.problem, 0.0, True, False, info
        grade = await self._grader.grade(self._problem, candidate.source, self._owner)
        metrics = {
            "tests_passed": grade.passed / grade.total,
            "timed_out": float(grade.timed_out),
            "run_s": grade.took_s,
        }
        info = {"won": grade.correct, "invalid_action": False, "metrics": metrics}
        return grade.why, grade.reward(self._partial), True, False, info


class CodeEnv(OutsideEnv):
    """One problem, one program, for `gymnasium.make("rocknroll/Code-v0")`. Close it: it keeps sandboxes."""

    def __init__(
        self, config: Mapping[str, Any] | None = None, split: str = "train", render_mode: str | None = None
    ) -> None:
        """`config`: fields of `CodeConfig`. `split`: where problems come from when `reset` names none."""
        super().__init__(CodeFamily(config), split, render_mode)


def _spec(config: CodeConfig) -> SandboxSpec:
    docker = config.runtime == "docker"
    return SandboxSpec(
        name="code",
        image=(config.image or DEFAULT_IMAGE) if docker else "",
        bare=True,
        resources=Resources(
            memory_bytes=config.memory_bytes,
            processes=config.processes,
            scratch_bytes=SCRATCH_BYTES,
            work_bytes=SCRATCH_BYTES,
        ),
    )
