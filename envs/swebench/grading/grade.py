"""Grades a patch: applies it in a fresh sandbox, asks the tests, does so again in another, and says what that proves.

What decides happens out here. A sandbox is only trusted until the tests start in it: until then nothing of the patch
has run. Infrastructure that fails raises a SandboxError; it is never a verdict.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchSet

from rocknroll.envs.swebench.grading.asking import Asking, counts_disagree, judge, plan, refuted
from rocknroll.envs.swebench.grading.control import to_undo
from rocknroll.envs.swebench.grading.script import WORKDIR, Script, script_of
from rocknroll.envs.swebench.instance import Instance, RowError
from rocknroll.envs.swebench.logs import Statuses, parser_of
from rocknroll.sandbox.errors import ExecFailed
from rocknroll.sandbox.results import ExecResult

OUTPUT_BYTES = 4 << 20
SETUP_TIMEOUT_S = 120.0
_APPLY = (
    ("git", "apply", "--verbose"),
    ("git", "apply", "--verbose", "--3way"),
    ("git", "apply", "--verbose", "--reject"),
    ("patch", "--batch", "--forward", "--fuzz=5", "-p1", "-i"),
)
"""In turn, each on a clean tree, as the official harness does."""
_CLEAN = ("sh", "-c", "git checkout -q -- . ; git clean -qfd")
_PATCH = "/tmp/rocknroll.patch"


class Workplace(Protocol):
    """What grading needs of a sandbox: `LeasedSandbox` and the clients' leases have it."""

    async def exec(
        self,
        command: str | Sequence[str],
        timeout_s: float = ...,
        stdin: bytes = ...,
        cwd: str = ...,
        variables: Mapping[str, str] | None = ...,
        output_bytes: int = ...,
    ) -> ExecResult: ...

    async def read(self, path: str) -> bytes: ...

    async def write(self, path: str, data: bytes, mode: int | None = None) -> object: ...


@dataclass(frozen=True)
class Grade:
    """What a patch is worth, and why."""

    resolved: bool
    why: str
    """`resolved`, `tests failed`, `empty patch`, `patch does not apply`, `timed out`, or `no proof`: the reports
    contradict what right code can report."""
    not_passed: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()
    """Files of the patch that were put back: tests, and what steers them."""
    trips: tuple[str, ...] = ()
    """What the reports contradicted themselves in."""
    unproven: tuple[str, ...] = ()
    """Of a resolved instance, deciding tests that could not be turned around: what they say is taken at its word."""
    logs: tuple[str, ...] = field(default=(), repr=False)

    @property
    def cheating(self) -> int:
        """How many files were put back and how many contradictions there were."""
        return len(self.undone) + len(self.trips)


class PatchFails(Exception):
    """A patch does not apply; has what git and patch said."""


@dataclass(frozen=True)
class _Prepared:
    undone: tuple[str, ...]
    sources: Mapping[str, str]
    """Of the test files that are text, the test patch applied."""


async def grade(
    instance: Instance,
    patch: str,
    fresh: Callable[[], AbstractAsyncContextManager[Workplace]],
    *,
    timeout_s: float = 1800.0,
    workdir: str = WORKDIR,
    rng: random.Random | None = None,
    ask_anyway: bool = False,
) -> Grade:
    """Grade a patch.

    Args:
        fresh: gives a fresh sandbox with the repository at the base commit in `workdir`; two are taken, one after the
            other, and the second only if the first run refutes nothing.
        timeout_s: of one run of the tests.
        rng: draws which tests are turned around; unpredictable unless given.
        ask_anyway: run the tests for an empty patch, too, which are known to fail.

    Raises:
        SandboxError: a sandbox failed. RowError: the row cannot be graded: its gold or test patch or script is broken.
    """
    if not patch.strip() and not ask_anyway:
        return Grade(False, "empty patch")
    rng = rng or random.Random(secrets.randbits(64))
    gold, tests = touched(instance.gold_patch, "patch"), touched(instance.test_patch, "test_patch")
    script, parse = script_of(instance, tests, workdir), parser_of(instance)
    deciding = instance.fail_to_pass, instance.pass_to_pass
    askings: tuple[Asking, Asking] | None = None
    runs: list[_Run] = []
    for number in range(2):
        async with fresh() as place:
            try:
                prepared = await _prepare(place, instance, patch, gold, tests, workdir)
            except PatchFails as error:
                return Grade(False, "patch does not apply", logs=(str(error),))
            askings = askings or plan(prepared.sources, *deciding, rng)
            runs.append(_Run.of(await _ask(place, askings[number], script, tests, workdir, timeout_s), parse, script))
        logs = tuple(run.log for run in runs)
        if runs[-1].timed_out:
            return Grade(False, "timed out", undone=prepared.undone, logs=logs)
        if number == 0:
            # Most patches of a policy in training are wrong, and most of those end here.
            missing, trips = refuted(askings[0], runs[0].answer, runs[0].exit_code, *deciding)
            if missing or (trips := [*trips, *runs[0].miscounted]):
                return _refusal(missing, trips, prepared, logs)
    assert askings is not None
    first, second = runs
    verdict = judge(askings, (first.answer, second.answer), (first.exit_code, second.exit_code), *deciding)
    trips = [*verdict.trips, *first.miscounted, *second.miscounted]
    if verdict.not_passed or trips:
        return _refusal(verdict.not_passed, trips, prepared, logs)
    return Grade(True, "resolved", undone=prepared.undone, unproven=verdict.unproven, logs=logs)


@dataclass(frozen=True)
class _Run:
    """One run of the tests."""

    log: str
    answer: Statuses
    exit_code: int | None
    """None where the command did not end by itself."""
    timed_out: bool
    miscounted: tuple[str, ...]
    """What is wrong between the list and the counts in pytest's summary."""

    @classmethod
    def of(cls, done: ExecResult, parse: Callable[[str], Statuses], script: Script) -> _Run:
        log = done.stdout.decode(errors="replace")
        answer = parse(log)
        wrong = counts_disagree(log, answer) if script.is_pytest and not done.timed_out else ""
        return cls(log, answer, done.exit_code if done.exit_code >= 0 else None, done.timed_out, (wrong,) * bool(wrong))


def _refusal(missing: Sequence[str], trips: Sequence[str], prepared: _Prepared, logs: tuple[str, ...]) -> Grade:
    return Grade(
        False, "tests failed" if missing else "no proof", tuple(missing), prepared.undone, tuple(trips), (), logs
    )


def touched(patch: str, column: str) -> list[str]:
    """Files that a row's own patch touches, with both names of renamed ones.

    Raises:
        RowError: it is no patch.
    """
    try:
        files = PatchSet(patch)
    except UnidiffParseError as error:
        raise RowError(f"its {column} is not a unified diff: {error}") from None
    names = {
        name.removeprefix(prefix)
        for file in files
        for name, prefix in ((file.source_file, "a/"), (file.target_file, "b/"))
        if name != "/dev/null"
    }
    return sorted(names)


async def _prepare(
    place: Workplace, instance: Instance, patch: str, gold: Sequence[str], tests: Sequence[str], workdir: str
) -> _Prepared:
    """Apply the patch, put back what it must not change, and put the tests in their place."""
    base = await _names(place, workdir, "git ls-files -z")
    marker = "/tmp/rocknroll-before"
    # Clocks of files tick every few milliseconds.
    await _run(place, workdir, ["sh", "-c", f"touch {marker} && sleep 0.05"])
    if patch.strip():
        await _apply(place, workdir, patch)
    changed = await _names(place, workdir, f"find . -path ./.git -prune -o ! -type d -newer {marker} -printf '%P\\0'")
    changed += await _names(place, workdir, "git ls-files -z --deleted")
    links = await _names(place, workdir, f"find . -path ./.git -prune -o -type l -newer {marker} -printf '%P\\0'")
    undo = to_undo(changed, gold, tests, base) + [path for path in links if path not in gold]
    for path in sorted(set(undo)):
        await _run(place, workdir, ["rm", "-rf", "--", path])
        if path in base:
            await _run(place, workdir, ["git", "checkout", "-q", "HEAD", "--", path])
    kept = [path for path in tests if path in base]
    if kept:
        await _run(place, workdir, ["git", "checkout", "-q", instance.base_commit, "--", *kept])
    if refusal := await _apply_by(place, workdir, instance.test_patch, _APPLY[0]):
        raise RowError(f"its test_patch does not apply: {refusal}")
    sources = {}
    for path in tests:
        if path.endswith(".py"):
            try:
                sources[path] = (await place.read(f"{workdir}/{path}")).decode()
            except UnicodeDecodeError:
                continue
    return _Prepared(tuple(sorted(set(undo))), sources)


async def _ask(
    place: Workplace, asking: Asking, script: Script, tests: Sequence[str], workdir: str, timeout_s: float
) -> ExecResult:
    for path, content in asking.files.items():
        await place.write(f"{workdir}/{path}", content.encode())
    text = script.text(tests, asking.only)
    return await place.exec(
        ["bash", "-c", f"exec 2>&1\n{text}"], timeout_s=timeout_s, cwd=workdir, output_bytes=OUTPUT_BYTES
    )


async def _apply(place: Workplace, workdir: str, patch: str) -> None:
    """Apply a model's patch, one way or another."""
    said = []
    for number, command in enumerate(_APPLY):
        if number:
            await _run(place, workdir, _CLEAN)
        if not (refusal := await _apply_by(place, workdir, patch, command)):
            return
        said.append(f"{' '.join(command)}: {refusal}")
    # All may refuse what the last of them has applied all the same.
    if await _apply_by(place, workdir, patch, ("git", "apply", "--check", "--reverse")):
        raise PatchFails("\n".join(said))


async def _apply_by(place: Workplace, workdir: str, patch: str, command: Sequence[str]) -> str:
    """What the command says against the patch; empty when it took it."""
    text = patch if patch.endswith("\n") else f"{patch}\n"
    await place.write(_PATCH, text.encode(errors="surrogateescape"))
    try:
        done = await place.exec([*command, _PATCH], timeout_s=SETUP_TIMEOUT_S, cwd=workdir)
    except ExecFailed as absent:  # not every image has `patch`
        return str(absent)
    if done.exit_code == 0:
        return ""
    return (done.stderr or done.stdout).decode(errors="replace").strip() or f"exit code {done.exit_code}"


async def _names(place: Workplace, workdir: str, command: str) -> list[str]:
    done = (await place.exec(command, timeout_s=SETUP_TIMEOUT_S, cwd=workdir, output_bytes=OUTPUT_BYTES)).check()
    return [name for name in done.stdout.decode(errors="surrogateescape").split("\0") if name]


async def _run(place: Workplace, workdir: str, command: Sequence[str]) -> None:
    (await place.exec(command, timeout_s=SETUP_TIMEOUT_S, cwd=workdir)).check()
