"""Grades a patch: applies it in fresh sandboxes, asks the tests twice, and says what that proves.

What decides happens out here. A sandbox is only trusted until the tests start in it: until then nothing of the patch
has run. Infrastructure that fails raises a SandboxError; it is never a verdict.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchSet

from rocknroll.envs.swebench.grading.asking import Asking, counts_disagree, judge, plan
from rocknroll.envs.swebench.grading.control import to_undo
from rocknroll.envs.swebench.grading.script import WORKDIR, Script, script_of
from rocknroll.envs.swebench.instance import Instance, RowError
from rocknroll.envs.swebench.logs import parser_of
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
    """Deciding tests that could not be turned around: what they say is taken at its word."""
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
        fresh: gives a fresh sandbox with the repository at the base commit in `workdir`; two are taken.
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
    async with fresh() as first, fresh() as second:
        try:
            prepared, _ = await asyncio.gather(
                *(_prepare(place, instance, patch, gold, tests, workdir) for place in (first, second))
            )
        except PatchFails as error:
            return Grade(False, "patch does not apply", logs=(str(error),))
        askings = plan(prepared.sources, instance.fail_to_pass, instance.pass_to_pass, rng)
        results = await asyncio.gather(
            *(
                _ask(place, asking, script, tests, workdir, timeout_s)
                for place, asking in zip((first, second), askings, strict=True)
            )
        )
    logs = tuple(result.stdout.decode(errors="replace") for result in results)
    if any(result.timed_out for result in results):
        return Grade(False, "timed out", undone=prepared.undone, logs=logs)
    answers = (parse(logs[0]), parse(logs[1]))
    exits = tuple(None if result.exit_code < 0 else result.exit_code for result in results)
    verdict = judge(askings, answers, (exits[0], exits[1]), instance.fail_to_pass, instance.pass_to_pass)
    trips = list(verdict.trips)
    if script.is_pytest:
        trips += [wrong for log, answer in zip(logs, answers, strict=True) if (wrong := counts_disagree(log, answer))]
    why = "tests failed" if verdict.not_passed else "no proof" if trips else "resolved"
    return Grade(why == "resolved", why, verdict.not_passed, prepared.undone, tuple(trips), verdict.unproven, logs)


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
