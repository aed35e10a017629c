"""`rocknroll/SWEBench-v0`: commands of the agent in a leased sandbox; everything that decides is out here.

The gold patch and the hidden tests never enter the agent's sandbox. The environment takes the difference itself, gives
that sandbox back, and has the patch graded in fresh ones.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import gymnasium

from rocknroll.envs.swebench.config import SWEBenchConfig
from rocknroll.envs.swebench.grading.grade import Grade, grade
from rocknroll.envs.swebench.instance import Instance, RowError
from rocknroll.envs.swebench.protocol import command_of, observation, submits
from rocknroll.envs.swebench.workplaces import Workplaces
from rocknroll.envs.text import Task
from rocknroll.sandbox.errors import EnvError
from rocknroll.sandbox.leased import LeasedSandbox

OUTPUT_BYTES = 64 << 10
"""Of a command that are fetched, head and tail; the agent sees fewer (`protocol.LIMIT_CHARS`)."""
PATCH_BYTES = 4 << 20
DIFF_TIMEOUT_S = 120.0
_END = "kill -9 -1 2>/dev/null; true"
_DIFFERENCE = """\
git add -A && git -c core.quotePath=true diff --cached --binary --no-color --no-ext-diff --no-textconv {base}
"""
_SUBMITTED, _OUT_OF_TURNS = "submitted", "out of turns"


class Episode:
    """One agent at one instance, see `text.TextEnvironment` and `text.Concludes`."""

    def __init__(self, instance: Instance, places: Workplaces, config: SWEBenchConfig, owner: str) -> None:
        self.instance = instance
        self._places, self._config, self._owner = places, config, owner
        self._workdir = places.workdir(instance)
        self._held = AsyncExitStack()
        self._sandbox: LeasedSandbox | None = None
        self._base = ""
        self._turns = 0
        self._spent_s: defaultdict[str, float] = defaultdict(float)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Lease a fresh sandbox and tell the problem.

        Raises:
            EnvError: the row is unfit. SandboxError: no sandbox can be had.
        """
        await self.close()
        self._turns = 0
        with self._timed("reset"), self._named():
            self._sandbox = await self._held.enter_async_context(self._places.fresh(self.instance, self._owner))
            head = await self._sandbox.exec(["git", "rev-parse", "HEAD"], DIFF_TIMEOUT_S, cwd=self._workdir)
        self._base = head.check().stdout.decode().strip()
        return problem_of(self.instance, self._config.hints), {"won": False, "instance_id": self.instance.id}

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Run the action's command. A submission, and the last turn, end the episode with its reward, 1 or 0.

        Raises:
            EnvError: the row cannot be graded. SandboxError: the infrastructure failed.
        """
        if self._sandbox is None:
            raise gymnasium.error.ResetNeeded("call reset() before step(): no episode is open")
        self._turns += 1
        left = self._config.max_turns - self._turns
        command = command_of(action)
        if command.problem:
            seen, over = command.problem, ""
        else:
            seen, over = await self._run(self._sandbox, command.text, left)
        over = over or (_OUT_OF_TURNS if left <= 0 else "")
        info: dict[str, Any] = {"won": False, "invalid_action": bool(command.problem), "instance_id": self.instance.id}
        if not over:
            return seen, 0.0, False, False, info
        reward, judged = await self.conclude()
        return judged["why"], reward, over == _SUBMITTED, over == _OUT_OF_TURNS, {**info, **judged, "ended": over}

    async def conclude(self) -> tuple[float, dict[str, Any]]:
        """Take the difference, give the agent's sandbox back, and grade. Reward 1 for a resolved instance.

        Raises:
            EnvError: the row cannot be graded. SandboxError: the infrastructure failed; that is no verdict.
        """
        if self._sandbox is None:
            raise gymnasium.error.ResetNeeded("call reset() before conclude(): no episode is open")
        with self._timed("grading"), self._named():
            patch = await self._difference(self._sandbox)
            await self.close()
            found = await self._grade(patch)
        metrics = {
            "cheating": float(found.cheating),
            "unproven": float(len(found.unproven)),
            "commands": float(self._turns),
            **{f"{what}_s": took_s for what, took_s in self._spent_s.items()},
        }
        info = {"won": found.resolved, "why": found.why, "patch": patch or "", "metrics": metrics}
        return float(found.resolved), info

    async def close(self) -> None:
        """Give the agent's sandbox back. Idempotent."""
        self._sandbox = None
        held, self._held = self._held, AsyncExitStack()
        await held.aclose()

    async def _run(self, sandbox: LeasedSandbox, command: str, left: int) -> tuple[str, str]:
        """What the agent sees of a command, and whether it ends the episode."""
        with self._timed("commands"):
            done = await sandbox.exec(
                ["bash", "-c", f"exec 2>&1\n{command}"],
                timeout_s=self._config.command_timeout_s,
                cwd=self._workdir,
                output_bytes=OUTPUT_BYTES,
            )
        output = done.stdout.decode(errors="replace")
        if submits(output, done.exit_code):
            return output, _SUBMITTED
        timed_out_s = self._config.command_timeout_s if done.timed_out else None
        turns_left = left if self._config.remind else None
        return observation(done.exit_code, output, timed_out_s=timed_out_s, turns_left=turns_left), ""

    async def _difference(self, sandbox: LeasedSandbox) -> str | None:
        """What the agent changed, as a patch; None where it cannot be told: too large, or its git is broken."""
        await sandbox.exec(["sh", "-c", _END], DIFF_TIMEOUT_S)
        done = await sandbox.exec(
            ["sh", "-c", _DIFFERENCE.format(base=self._base)],
            DIFF_TIMEOUT_S,
            cwd=self._workdir,
            output_bytes=PATCH_BYTES,
        )
        if done.exit_code or done.stdout_cut_bytes:
            return None
        return done.stdout.decode(errors="surrogateescape")

    async def _grade(self, patch: str | None) -> Grade:
        if patch is None:
            return Grade(False, "no patch can be taken")
        return await grade(
            self.instance,
            patch,
            partial(self._places.fresh, self.instance, self._owner),
            timeout_s=self._config.grading_timeout_s,
            workdir=self._workdir,
        )

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self._spent_s[what] += time.perf_counter() - began_s

    @contextmanager
    def _named(self) -> Iterator[None]:
        """A row that cannot be used is a fault of the environment, which costs its episode and not the run."""
        try:
            yield
        except RowError as error:
            raise EnvError(f"{self.instance.id}: {error}") from None


class EpisodePlaces:
    """Leases an `Episode` for each task (`text.Places`)."""

    def __init__(self, instances: Mapping[str, Instance], places: Workplaces, config: SWEBenchConfig) -> None:
        self._instances, self._places, self._config = instances, places, config

    @asynccontextmanager
    async def lease(self, owner: str, task: Task) -> AsyncIterator[Episode]:
        episode = Episode(self._instances[task.id], self._places, self._config, owner)
        try:
            yield episode
        finally:
            await episode.close()


def problem_of(instance: Instance, hints: bool) -> str:
    """The first observation."""
    told = [instance.problem.strip()]
    if hints and instance.hints.strip():
        told.append(f"Hints:\n{instance.hints.strip()}")
    return "\n\n".join(told)
