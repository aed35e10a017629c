"""Many gradings: some at a time, infrastructure tried again, every result written down before the next begins.

A result that is in the file already is not made again, so a campaign that was interrupted goes on where it was.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rocknroll.envs.swebench.grading.grade import Grade, grade
from rocknroll.envs.swebench.instance import Instance, RowError
from rocknroll.envs.swebench.workplaces import Workplaces
from rocknroll.envs.text import EnvDataError
from rocknroll.sandbox.errors import ImageNotFound, SandboxError, SpecInvalid

ATTEMPTS = 3
"""At what fails for reasons of infrastructure."""
BACKOFF_S = 1.0
"""Before the second attempt; doubles."""
SANDBOXES_EACH = 2
"""That one grading holds at once."""
HOPELESS = (ImageNotFound, SpecInvalid)
"""What no second attempt mends."""


@dataclass(frozen=True)
class Job:
    """A patch to be graded."""

    name: str
    """Tells the jobs on one instance apart: `gold 1`, `empty`…"""
    instance: Instance
    patch: str

    @property
    def key(self) -> str:
        """Of everything that decides the result."""
        row = json.dumps(self.instance.row, sort_keys=True, default=str)
        return hashlib.sha256("\0".join([self.name, row, self.patch]).encode(errors="replace")).hexdigest()[:16]


@dataclass(frozen=True)
class Result:
    """What came of a job: a grade, or an error that is no verdict."""

    key: str
    name: str
    instance_id: str
    resolved: bool = False
    why: str = ""
    not_passed: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()
    trips: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()
    error: str = ""
    """Name of the error's class; empty for a grade."""
    text: str = ""
    seconds: float = 0.0

    @classmethod
    def of(cls, job: Job, found: Grade, seconds: float) -> Result:
        return cls(
            job.key,
            job.name,
            job.instance.id,
            found.resolved,
            found.why,
            found.not_passed,
            found.undone,
            found.trips,
            found.unproven,
            seconds=round(seconds, 2),
        )

    @property
    def cheating(self) -> int:
        return len(self.undone) + len(self.trips)


class Record:
    """The file of results, one JSON object a line; without a path nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        """
        Raises:
            EnvDataError: the file is there and is none of results.
        """
        self._path = path
        self.results: dict[str, Result] = {}
        if path is None or not path.exists():
            return
        lines = path.read_text(encoding="utf-8").split("\n")
        for number, line in enumerate(lines, start=1):
            if not line:
                continue
            try:
                result = Result(**{name: _tupled(value) for name, value in json.loads(line).items()})
            except (json.JSONDecodeError, TypeError, AttributeError) as error:
                if number == len(lines):  # cut off in the middle by a kill
                    path.write_text("".join(f"{kept}\n" for kept in lines[:-1]), encoding="utf-8")
                    break
                raise EnvDataError(f"{path} line {number} is no result: {error}; name another file") from None
            if not result.error:  # what failed is tried again
                self.results[result.key] = result

    def add(self, result: Result) -> None:
        self.results[result.key] = result
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(result)) + "\n")


async def grade_all(
    jobs: Sequence[Job],
    places: Workplaces,
    parallel: int,
    record: Record,
    *,
    timeout_s: float,
    ask_anyway: bool = False,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> Mapping[str, Result]:
    """Grade every job, `parallel` at a time; results by key. A failure costs its own job, never the campaign."""
    missing = [job for job in jobs if job.key not in record.results]
    slots = asyncio.Semaphore(parallel)
    done = len(jobs) - len(missing)

    async def run(job: Job) -> None:
        nonlocal done
        async with slots:
            record.add(await _attempt(job, places, timeout_s, ask_anyway))
        done += 1
        tell(done, len(jobs))

    tell(done, len(jobs))
    async with asyncio.TaskGroup() as group:
        for job in missing:
            group.create_task(run(job))
    return {job.key: record.results[job.key] for job in jobs}


async def _attempt(job: Job, places: Workplaces, timeout_s: float, ask_anyway: bool) -> Result:
    error: Exception
    began_s = time.monotonic()
    fresh = partial(places.fresh, job.instance, f"grading {job.instance.id}"[:60])
    for attempt in range(ATTEMPTS):
        try:
            found = await grade(
                job.instance,
                job.patch,
                fresh,
                timeout_s=timeout_s,
                workdir=places.workdir(job.instance),
                ask_anyway=ask_anyway,
            )
            return Result.of(job, found, time.monotonic() - began_s)
        except (RowError, *HOPELESS) as failure:
            error = failure
            break
        except SandboxError as failure:
            error = failure
            await asyncio.sleep(BACKOFF_S * 2**attempt * (attempt < ATTEMPTS - 1))
    took_s = round(time.monotonic() - began_s, 2)
    return Result(job.key, job.name, job.instance.id, error=type(error).__name__, text=str(error), seconds=took_s)


def by_instance(results: Iterable[Result]) -> dict[str, list[Result]]:
    """Results of each instance, in order."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result.instance_id, []).append(result)
    return found


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
