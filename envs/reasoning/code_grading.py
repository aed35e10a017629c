"""Trying a candidate's program in a sandbox, one test at a time. Inputs go in, outputs come out, and are compared here.

Expected outputs never enter the sandbox, so whatever a program does there, it passes a test by printing or returning
what is right. What goes wrong with the sandbox is a SandboxError; what the program does to itself is a grade.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources

from rocknroll.envs.reasoning.code_answer import returned, same_output, same_value
from rocknroll.envs.reasoning.code_config import CodeConfig
from rocknroll.envs.reasoning.code_problem import Case, CodeProblem
from rocknroll.envs.reasoning.timeouts import AdaptiveTimeouts
from rocknroll.sandbox.agent.output import MAX_OUTPUT_BYTES
from rocknroll.sandbox.errors import ExecFailed
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.leased import LeasedSandbox
from rocknroll.sandbox.results import ExecResult

LEASE_S = 60.0
SPARE_OUTPUT_BYTES = 1 << 16
"""A program may print so much more than twice what is expected; the rest is cut, and wrong."""
SHOWN_CHARS = 200
PROGRAM, RUNNER = "program.py", "runner.py"
_RUNNER_SOURCE = (resources.files(__package__) / "code_runner.py").read_bytes()


@dataclass(frozen=True)
class Grade:
    """What a program is worth."""

    passed: int
    total: int
    why: str
    """`correct`, or what happened in the first test that was not passed."""
    took_s: float
    """Seconds that its runs took, all together; waiting for a sandbox does not count."""
    timed_out: bool = False

    @property
    def correct(self) -> bool:
        return self.passed == self.total

    def reward(self, partial: bool) -> float:
        """1 for a program that passes all tests, else 0; with `partial` the share, and still 0 after a timeout."""
        if partial and not self.timed_out:
            return self.passed / self.total
        return float(self.correct)


class Grader:
    """Tries programs in sandboxes of a fleet, several at once.

    Args:
        python: command of the interpreter inside; None asks each sandbox.
    """

    def __init__(self, fleet: Fleet, python: Sequence[str] | None, config: CodeConfig) -> None:
        self._fleet, self._python, self._config = fleet, python, config
        self._timeouts = AdaptiveTimeouts(config.min_timeout_s, config.max_timeout_s, config.timeout_factor)

    async def grade(self, problem: CodeProblem, source: str, owner: str) -> Grade:
        """Try a program on the tests of a problem, in a sandbox that nobody used before.

        Raises:
            SandboxError: no sandbox can be had, or it was lost.
        """
        timeout_s = self._timeouts.timeout_s(problem.id)
        sandbox = await self._fleet.lease(owner, ttl_s=LEASE_S)
        try:
            trial = Trial(sandbox, self._python or sandbox.python, problem, self._config)
            await trial.prepare(source)
            grade = await trial.grade(source, timeout_s)
        finally:
            await sandbox.release(recycle=True)
        self._timeouts.evaluated(problem.id, grade.took_s, grade.correct)
        return grade


@dataclass(frozen=True)
class Trial:
    """One program in one sandbox."""

    sandbox: LeasedSandbox
    python: Sequence[str]
    problem: CodeProblem
    config: CodeConfig

    async def prepare(self, source: str) -> None:
        if self.problem.function:
            await self.sandbox.write(RUNNER, _RUNNER_SOURCE)
        else:
            await self.sandbox.write(PROGRAM, source.encode(errors="replace"))

    async def grade(self, source: str, timeout_s: float) -> Grade:
        """All tests under one deadline; without partial credit the first failure ends it."""
        grade = Grade(0, len(self.problem.cases), "", 0.0)
        for number, case in enumerate(self.problem.cases, start=1):
            failed, took_s = await self._test(number, case, source, timeout_s - grade.took_s)
            grade = replace(grade, took_s=grade.took_s + took_s, passed=grade.passed + (not failed))
            if failed and not grade.why:
                grade = replace(grade, why=f"test {number} of {grade.total}: {failed}")
            if (grade.took_s >= timeout_s and number < grade.total) or failed == _TIMED_OUT:
                why = f"test {number} of {grade.total}: timed out, after {grade.took_s:.1f} s of {timeout_s:.1f} s"
                return replace(grade, why=why, timed_out=True)
            if failed and not self.config.partial:
                break
        return replace(grade, why=grade.why or "correct")

    async def _test(self, number: int, case: Case, source: str, left_s: float) -> tuple[str, float]:
        """(why it is not passed, or "", seconds)."""
        try:
            if not self.problem.function:
                return await self._run_program(case, left_s)
            return await self._call_function(case, source, left_s)
        except ExecFailed as failed:
            if number == 1:
                raise
            return f"what earlier tests left running keeps it from starting ({_shown(str(failed))})", 0.0

    async def _run_program(self, case: Case, left_s: float) -> tuple[str, float]:
        given, limit = str(case.given), _limit(str(case.expected))
        done = await self._exec(PROGRAM, given.encode(errors="replace"), left_s, limit)
        if failed := _ended_badly(done, limit):
            return failed, done.wall_s
        right = same_output(case.expected, done.stdout, self.config.tolerance)
        return "" if right else "wrong answer", done.wall_s

    async def _call_function(self, case: Case, source: str, left_s: float) -> tuple[str, float]:
        marker, limit = secrets.token_hex(16), _limit(json.dumps(case.expected))
        job = {"source": source, "function": self.problem.function, "arguments": case.given, "marker": marker}
        done = await self._exec(RUNNER, json.dumps(job).encode(), left_s, limit)
        if failed := _ended_badly(done, limit):
            return failed, done.wall_s
        _, marked, said = done.stdout.decode(errors="replace").rpartition(f"\n{marker}")
        try:
            answer = returned(said) if marked else None
        except ValueError as error:
            return f"what it returned cannot be read: {_shown(str(error))}", done.wall_s
        if not isinstance(answer, dict) or not answer.keys() & {"value", "raised"}:
            return "it ended before it returned", done.wall_s
        if "value" not in answer:
            return f"raised {_shown(str(answer['raised']))}", done.wall_s
        right = same_value(case.expected, answer["value"], self.config.tolerance)
        return "" if right else "wrong answer", done.wall_s

    async def _exec(self, program: str, stdin: bytes, left_s: float, limit: int) -> ExecResult:
        flags = ["-I"] if self.config.packages else ["-I", "-S"]
        return await self.sandbox.exec([*self.python, *flags, program], left_s, stdin, output_bytes=limit)


_TIMED_OUT = "timed out"


def _ended_badly(done: ExecResult, limit: int) -> str:
    """Why a run's output does not matter; empty if it does."""
    if done.timed_out:
        return _TIMED_OUT
    if done.stdout_cut_bytes:
        return f"printed more than {limit} bytes"
    if done.exit_code < 0:
        return f"was ended by signal {-done.exit_code}, perhaps for lack of memory"
    if done.exit_code:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return f"raised {_shown(lines[-1])}" if lines else f"ended with exit code {done.exit_code}"
    return ""


def _limit(expected: str) -> int:
    return min(MAX_OUTPUT_BYTES, 2 * len(expected.encode(errors="replace")) + SPARE_OUTPUT_BYTES)


def _shown(text: str) -> str:
    """Text of the candidate's, for people: one line, nothing that a terminal would obey."""
    return "".join(sign if sign.isprintable() else " " for sign in text[:SHOWN_CHARS])
