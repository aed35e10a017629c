"""Which CPU cores there are, and holding a thread to some of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from rocknroll.trainer.errors import RecipeError


def available_cores() -> tuple[int, ...]:
    """Cores that threads of this process may run on, even where the calling one is held to fewer."""

    def all_of_them() -> set[int]:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))  # of this thread alone; the kernel leaves out the rest
        return os.sched_getaffinity(0)

    with ThreadPoolExecutor(1) as thread:
        return tuple(sorted(thread.submit(all_of_them).result()))


def check_cores(cores: Sequence[int], setting: str) -> None:
    """Refuse cores that this machine lacks; `setting` is where they stand in the recipe.

    Raises:
        RecipeError: some are not there, or none are named.
    """
    there = available_cores()
    missing = sorted(set(cores) - set(there))
    if missing or not cores:
        named = f"names cores {missing}, which this machine lacks" if missing else "names no cores"
        raise RecipeError(
            f"`{setting}` {named}: it has {list(there)} for this process. Name some of those, or leave `{setting}` out"
            " to let the kernel choose"
        )


def share_of(cores: Sequence[int], index: int, count: int) -> tuple[int, ...]:
    """The cores of part `index` of `count`: every `count`th one, or one that parts share if there are too few."""
    return tuple(cores[index::count]) or (cores[index % len(cores)],)


def hold(thread_id: int, cores: Sequence[int]) -> None:
    """Let a thread (by its id in the kernel), and the threads that it starts later, run on these cores alone."""
    os.sched_setaffinity(thread_id, cores)


def hold_process(cores: Sequence[int]) -> None:
    """Let all threads of this process, and what they start later, run on these cores alone."""
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it ended meanwhile
            hold(int(thread.name), cores)
