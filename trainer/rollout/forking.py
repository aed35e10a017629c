"""Where the rollout process comes from: a server that has imported what it needs, and is forked.

Importing torch and transformers takes longer than all else of a start. The server does it while the learner's process
does the same, on a core of its own, and once for all rollout processes that one process starts.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any


def begin() -> None:
    """Have the server begin with its imports; does nothing if it has.

    It keeps the environment variables of this moment, so those that matter to imports must be set.
    """
    _context()
    forkserver.ensure_running()


def process(target: Callable[..., None], *args: Any, name: str) -> ForkServerProcess:
    """A process that will call `target(*args)`, with the environment variables of this moment."""
    return _context().Process(target=_run, args=(dict(os.environ), target, *args), name=name, daemon=False)


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rocknroll.trainer.rollout.preloaded"])
    return context


def _run(environment: Mapping[str, str], target: Callable[..., None], *args: Any) -> None:
    os.environ.clear()
    os.environ.update(environment)
    target(*args)
