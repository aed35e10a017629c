"""Where the rollout process comes from: a server that has imported what it needs, and is forked.

Importing torch and transformers takes as long as all else of a start. The server does it while the learner's process
does the same, on a core of its own, and once for all rollout processes that one process starts.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext


def context() -> ForkServerContext:
    """The context to start rollout processes with."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["rocknroll.trainer.rollout.preloaded"])
    return found


def begin() -> None:
    """Have the server begin with its imports; does nothing if it has.

    It keeps the environment variables of this moment, so those that matter to imports must be set.
    """
    context()
    forkserver.ensure_running()
