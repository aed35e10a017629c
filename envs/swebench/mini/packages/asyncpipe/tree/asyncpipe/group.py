"""Tasks that end together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


async def reap(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and return once all have ended, whatever they end with.

    Each is cancelled once, so that it can clean up. If the caller is cancelled meanwhile, it goes on waiting, and the
    cancellation is raised when all have ended.
    """
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    cancelled = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait([task for task in tasks if not task.done()])
        except asyncio.CancelledError as error:
            cancelled = error
    for task in tasks:
        if not task.cancelled():
            # Looked at, so that asyncio does not log it as never retrieved.
            task.exception()
    if cancelled is not None:
        raise cancelled


async def run_all(*coroutines: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run coroutines at the same time; their results in the order given.

    The first error is raised as soon as the others have been cancelled and have ended. So is a cancellation of the
    caller.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        pending = set(tasks)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task in done:
                    task.result()
        return [task.result() for task in tasks]
    finally:
        await reap(tasks)
