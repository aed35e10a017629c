"""Items on their way through stages of workers.

A feeder numbers the items of the source, stages pass them on from queue to queue, and the caller reads the last queue.
No queue needs a bound: an item takes a slot before it is read from the source, and frees it when it leaves the last
queue. Tasks report their own end to the last queue as well, so that the caller hears of every error.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Union

from .group import reap

Source = Union[Iterable[Any], AsyncIterable[Any]]
_DROPPED = object()


@dataclass(frozen=True)
class _Stage:
    func: Callable[[Any], Any]
    workers: int
    filters: bool = False

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError("workers must be at least 1")

    async def apply(self, item: Any) -> Any:
        result = self.func(item)
        if inspect.isawaitable(result):
            result = await result
        if self.filters:
            return item if result else _DROPPED
        return result


@dataclass(frozen=True)
class Pipeline:
    """Stages that items go through one after the other. Each method gives a new pipeline.

    Args:
        limit: how many items may be on their way at most, read from the source and not handed out.
        ordered: hand out results in the order of the source; otherwise as they come.
    """

    limit: int = 16
    ordered: bool = True
    stages: tuple[_Stage, ...] = ()

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError("limit must be at least 1")

    def map(self, func: Callable[[Any], Any], *, workers: int = 1) -> Pipeline:
        """Replace each item by the result of a function, plain or async, with at most `workers` calls at a time."""
        return replace(self, stages=(*self.stages, _Stage(func, workers)))

    def filter(self, func: Callable[[Any], Any], *, workers: int = 1) -> Pipeline:
        """Keep the items for which a function, plain or async, is true."""
        return replace(self, stages=(*self.stages, _Stage(func, workers, filters=True)))

    async def collect(self, source: Source) -> list[Any]:
        """All results for a source; see `open`."""
        async with self.open(source) as results:
            return [result async for result in results]

    @asynccontextmanager
    async def open(self, source: Source) -> AsyncIterator[AsyncIterator[Any]]:
        """Results for the items of a source, plain or async; the block may be left at any time.

        The first error of the source or a stage ends the run, and is raised where results are read. When the block is
        left, however that happens, all tasks have ended, and a source that is an async generator has been closed.
        """
        results = self._run(source)
        try:
            yield results
        finally:
            await results.aclose()

    async def _run(self, source: Source) -> AsyncIterator[Any]:
        slots = asyncio.Semaphore(self.limit)
        queues: list[asyncio.Queue[Any]] = [asyncio.Queue() for _ in range(len(self.stages) + 1)]
        tasks = [asyncio.ensure_future(_feed(source, queues[0], slots))]
        for stage, inbox, outbox in zip(self.stages, queues, queues[1:]):
            tasks += [asyncio.ensure_future(_work(stage, inbox, outbox)) for _ in range(stage.workers)]
        for task in tasks:
            task.add_done_callback(queues[-1].put_nowait)
        early: dict[int, Any] = {}
        due, total = 0, None
        try:
            while total is None or due < total:
                event = await queues[-1].get()
                if isinstance(event, asyncio.Future):
                    # Only the feeder ends without an error.
                    total = event.result()
                    continue
                index, result = event
                early[index if self.ordered else due] = result
                while due in early:
                    result = early.pop(due)
                    due += 1
                    slots.release()
                    if result is not _DROPPED:
                        yield result
        finally:
            await reap(tasks)


async def _feed(source: Source, queue: asyncio.Queue[Any], slots: asyncio.Semaphore) -> int:
    """Number of items in the source, when all have been read."""
    items = source.__aiter__() if isinstance(source, AsyncIterable) else _asynchronous(source)
    count = 0
    try:
        await slots.acquire()
        async for item in items:
            queue.put_nowait((count, item))
            count += 1
            await slots.acquire()
        return count
    finally:
        if hasattr(items, "aclose"):
            await items.aclose()


async def _asynchronous(items: Iterable[Any]) -> AsyncIterator[Any]:
    for item in items:
        yield item


async def _work(stage: _Stage, inbox: asyncio.Queue[Any], outbox: asyncio.Queue[Any]) -> None:
    while True:
        index, item = await inbox.get()
        outbox.put_nowait((index, item if item is _DROPPED else await stage.apply(item)))
