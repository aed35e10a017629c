"""Holding the parts of a run to CPU cores of their own, so that they do not fight for the same ones."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rocknroll.trainer.errors import RecipeError


def check_cores(cores: Sequence[int] | None, key: str) -> None:
    """See that this process may use `cores`; `key` is the recipe's name for them.

    Raises:
        RecipeError: it may not; the text names those that it may use.
    """
    here = os.sched_getaffinity(0)
    missing = sorted(set(cores or ()) - here)
    if missing:
        raise RecipeError(
            f"`{key}` names the cores {', '.join(map(str, missing))}, and this process may use"
            f" {', '.join(map(str, sorted(here)))}: choose among those, or leave it out"
        )


def hold_to(cores: Sequence[int] | None, key: str) -> None:
    """Hold the calling thread, and every thread and process that it starts from now on, to `cores`; None: nothing.

    Raises:
        RecipeError: see `check_cores`.
    """
    if cores is not None:
        check_cores(cores, key)
        os.sched_setaffinity(0, cores)
