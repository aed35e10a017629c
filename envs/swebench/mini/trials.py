"""What a mutant does to its package's tests, found out in sandboxes.

A mutant is trusted with nothing: it may loop, allocate or print without end, so each run has a sandbox of its own that
is thrown away, and a deadline that follows from what the right package needs. A mutant that would make a task is run
twice, with different orders of sets; tests that answer differently are no tests to train on.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from rocknroll.envs.swebench.logs import PASSED, Statuses, function_of, parse_pytest
from rocknroll.envs.swebench.mini.package import Package
from rocknroll.envs.swebench.mini.problems import Failure, failures_of
from rocknroll.envs.swebench.tools import tools_folder
from rocknroll.envs.text import EnvDataError
from rocknroll.sandbox.errors import SandboxLost
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.leased import LeasedSandbox
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.sandbox.spec import Resources, SandboxSpec

MOST_HIDDEN = 1 / 3
"""Share of a package's tests that a mutant may hide: what breaks more is found at once, and leaves little to go by."""
RIGHT_LIMIT_S = 60
"""Seconds of CPU for the tests of a package as it is right."""
DEADLINE_S, DEADLINE_FACTOR = 2.0, 4.0
"""A mutant's run may use so many seconds of CPU, and so many times those of the right package beyond them."""
WALL_FACTOR = 10.0
"""For a run that waits instead: so many times as long, so that a busy machine does not decide what is kept."""
OUTPUT_BYTES = 1 << 20
_TRIES = 2
"""A sandbox may be lost by accident; who loses two has a mutant that does it."""
_ORDERS = ("1", "2")
"""Of sets of texts: PYTHONHASHSEED of the two runs."""
_PYTEST = "python3 -m pytest -q -rA --tb=short --color=no --rootdir=. -p no:cacheprovider -o verbosity_assertions=2"
_OUT_OF_TIME = 128 + signal.SIGXCPU
_TIMES = re.compile(r"(\d+)m([\d.]+)s (\d+)m([\d.]+)s\s*\Z")
"""Last line of the shell's `times`: user and system time of what it ran."""
_RESOURCES = Resources(
    memory_bytes=1 << 30, processes=64, file_bytes=16 << 20, scratch_bytes=64 << 20, work_bytes=64 << 20
)

Outcome = Literal[
    "kept", "no test fails", "too many tests fail", "broken", "timed out", "too much output", "flaky", "sandbox lost"
]
"""What became of a mutant; `broken`: not every test was reported on, as when a module cannot be imported."""


@dataclass(frozen=True)
class Answer:
    """One run of a package's tests."""

    statuses: Statuses
    exit_code: int
    log: str = ""
    timed_out: bool = False
    cut: bool = False
    """There was more output than is looked at."""
    cpu_s: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """Whether a mutant makes a task, and by which tests."""

    outcome: Outcome
    failing: tuple[str, ...] = ()
    """Test functions of which a case fails, in the package's order; empty unless the mutant is kept."""
    failures: tuple[Failure, ...] = ()
    """What pytest said of them."""


def judged(tests: Sequence[str], answer: Answer) -> Verdict:
    """What one run proves. `tests`: names of all that there are."""
    if answer.timed_out:
        return Verdict("timed out")
    if answer.cut:
        return Verdict("too much output")
    failing = dict.fromkeys(function_of(test) for test in tests if answer.statuses.get(test) != PASSED)
    if set(answer.statuses) != set(tests) or answer.exit_code != bool(failing):
        return Verdict("broken")
    if not failing:
        return Verdict("no test fails")
    files = {test.partition("::")[0] for test in failing}
    hidden = [test for test in tests if function_of(test) in failing]
    if len(hidden) > MOST_HIDDEN * len(tests) or not [
        test for test in tests if test.partition("::")[0] in files and test not in hidden
    ]:
        return Verdict("too many tests fail")
    return Verdict("kept", tuple(failing), failures_of(answer.log))


class Trials:
    """Tries mutants of some packages, `jobs` at a time, and remembers what came of them. Use as a context manager."""

    def __init__(self, packages: Sequence[Package], jobs: int) -> None:
        self._packages, self._jobs = packages, jobs
        self._turn = asyncio.Semaphore(jobs)
        self._stack = AsyncExitStack()
        self._fleet: Fleet | None = None
        self._limits_s: dict[str, int] = {}
        self._compiled: dict[str, Mapping[str, bytes]] = {}
        self._runs: dict[tuple[str, str], asyncio.Task[tuple[Verdict, Statuses]]] = {}
        self._outcomes: dict[str, Outcome] = {}

    @property
    def outcomes(self) -> Counter[Outcome]:
        """How many mutants came to what."""
        return Counter(self._outcomes.values())

    async def __aenter__(self) -> Self:
        """
        Raises:
            EnvDataError: a package's tests do not pass here though nothing is wrong with it.
            SandboxError: sandboxes cannot be had here.
        """
        try:
            folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="mutations-")))
            for package in self._packages:
                _put(package.tree, folder / package.name)
            # One beyond those at work: the next fresh sandbox is there when a run ends.
            fleet = Fleet(_spec(folder), size=self._jobs + 1, runtime=ProcessRuntime())
            self._fleet = await self._stack.enter_async_context(fleet)
            await asyncio.gather(*(self._measure(package) for package in self._packages))
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in self._runs.values():
            task.cancel()
        await asyncio.gather(*self._runs.values(), return_exceptions=True)
        await self._stack.aclose()

    async def noticed(self, package: Package, files: Mapping[str, str]) -> Verdict:
        """What one run says of a package with some files changed.

        Raises:
            SandboxError: sandboxes cannot be had any more.
        """
        return (await self._tried(package, files, _ORDERS[0]))[0]

    async def verdict(self, package: Package, files: Mapping[str, str]) -> Verdict:
        """What two runs say of it.

        Raises:
            SandboxError: sandboxes cannot be had any more.
        """
        verdict, statuses = await self._tried(package, files, _ORDERS[0])
        if verdict.outcome == "kept" and (await self._tried(package, files, _ORDERS[1]))[1] != statuses:
            self._outcomes[_key(package, files)] = "flaky"
            return Verdict("flaky")
        return verdict

    async def _tried(self, package: Package, files: Mapping[str, str], order: str) -> tuple[Verdict, Statuses]:
        key = _key(package, files)
        if (key, order) not in self._runs:
            self._runs[key, order] = asyncio.create_task(self._judge(package, files, order))
        tried = await asyncio.shield(self._runs[key, order])
        self._outcomes.setdefault(key, tried[0].outcome)
        return tried

    async def _judge(self, package: Package, files: Mapping[str, str], order: str) -> tuple[Verdict, Statuses]:
        for _ in range(_TRIES):
            with contextlib.suppress(SandboxLost):
                answer = await self._run(package, files, order, self._limits_s[package.name])
                return judged(package.tests, answer), answer.statuses
        return Verdict("sandbox lost"), {}

    async def _measure(self, package: Package) -> None:
        """Set the limit for a package's mutants by a run of what is right; keep what it compiled of the tests."""
        async with self._sandbox() as sandbox:
            answer = await _answer(sandbox, package, _ORDERS[0], RIGHT_LIMIT_S)
            self._compiled[package.name] = await _compiled_tests(sandbox, package)
        found = judged(package.tests, answer)
        if found.outcome != "no test fails":
            raise EnvDataError(
                f"the tests of {package.name} do not pass here though nothing is wrong with it ({found.outcome}); "
                f"last output: {answer.log[-1000:]!r}"
            )
        self._limits_s[package.name] = math.ceil(DEADLINE_S + DEADLINE_FACTOR * answer.cpu_s)

    async def _run(self, package: Package, files: Mapping[str, str], order: str, limit_s: int) -> Answer:
        async with self._sandbox() as sandbox:
            for path, text in files.items():
                await sandbox.write(f"{package.name}/{path}", text.encode())
            for path, code in self._compiled[package.name].items():
                await sandbox.write(path, code)
            return await _answer(sandbox, package, order, limit_s)

    @asynccontextmanager
    async def _sandbox(self) -> AsyncIterator[LeasedSandbox]:
        """One with all packages as they are right; nobody uses it afterwards."""
        assert self._fleet is not None, "use `async with Trials(…)`"
        async with self._turn:
            sandbox = await self._fleet.lease("mutations")
            try:
                yield sandbox
            finally:
                await sandbox.release(recycle=True)


def _key(package: Package, files: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps([package.name, sorted(files.items())]).encode()).hexdigest()


async def _answer(sandbox: LeasedSandbox, package: Package, order: str, limit_s: int) -> Answer:
    """What the tests say in `limit_s` seconds of CPU."""
    done = await sandbox.exec(
        f"ulimit -S -t {limit_s}; {_PYTEST}; code=$?; times >&2; exit $code",
        timeout_s=limit_s * WALL_FACTOR,
        cwd=package.name,
        variables={"PYTHONHASHSEED": order},
        output_bytes=OUTPUT_BYTES,
    )
    log, said = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    times = _TIMES.search(said)
    return Answer(
        statuses=parse_pytest(log),
        exit_code=done.exit_code,
        log=log + said,
        timed_out=done.timed_out or done.exit_code == _OUT_OF_TIME,
        cut=done.stdout_cut_bytes > 0,
        cpu_s=sum(60 * float(times[at]) + float(times[at + 1]) for at in (1, 3)) if times else float(limit_s),
    )


async def _compiled_tests(sandbox: LeasedSandbox, package: Package) -> dict[str, bytes]:
    """Files that pytest made of test modules, which takes as long as running them; they say whose they are."""
    found = (await sandbox.exec(["find", f"{package.name}/tests", "-name", "*.pyc"])).check()
    return {path: await sandbox.read(path) for path in found.stdout.decode().splitlines()}


def _put(tree: Mapping[str, str], folder: Path) -> None:
    for path, text in tree.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8", newline="")


def _spec(folder: Path) -> SandboxSpec:
    """Sandboxes as those that instances are graded in, with the packages in them."""
    return SandboxSpec(
        name="mutations",
        template=folder,
        bare=True,
        readable=(tools_folder(),),
        variables={
            "PATH": f"{Path(sys.base_prefix) / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": str(tools_folder()),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        resources=_RESOURCES,
    )
