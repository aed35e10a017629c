"""Batches as a rank of the learner gets them: rank 0 waits for the stream and hands on, the others are handed.

A request to stop comes from any thread, and is rank 0's to decide: the others learn of it when all ask.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from rocknroll.trainer.ranks import Ranks
from rocknroll.trainer.stream import Batch, Stream, StreamStopped
from rocknroll.trainer.trajectory import Group

T = TypeVar("T")


class Intake:
    """`stream` is asked by rank 0 alone."""

    def __init__(self, stream: Stream, ranks: Ranks) -> None:
        self.waiting = False
        """Whether the stream is waited for: an interrupt then ends the wait."""
        self._stream, self._ranks = stream, ranks
        self._stop_requested = threading.Event()
        self._waited_s = 0.0

    def request_stop(self) -> None:
        """Ask for the end; from any thread."""
        self._stop_requested.set()

    def stopping(self) -> bool:
        """Whether a stop was requested at rank 0; every rank must ask."""
        return self._ranks.broadcast(self._stop_requested.is_set())

    def next_batch(self, version: int) -> Batch:
        """What rank 0 is given, at every rank.

        Raises:
            StreamStopped: no batch will come, or rank 0 was interrupted while it waited.
        """
        batch: Batch | None = None
        if self._ranks.leads:
            try:
                batch = self._wait(lambda: self._stream.next_batch(version))
            except (StreamStopped, KeyboardInterrupt):
                self.request_stop()
        batch = self._ranks.broadcast(batch)
        if batch is None:
            raise StreamStopped
        return batch

    def ready_groups(self, version: int, seen: int) -> Sequence[Group]:
        """Groups of the next batch that are finished, beyond the first `seen`; for a learner of one rank.

        Raises:
            StreamStopped: a stop was requested, or no more will come.
        """
        if self._stop_requested.is_set():
            raise StreamStopped
        return self._wait(lambda: self._stream.ready_groups(version, seen))

    def take_waited_s(self) -> float:
        """Seconds for which the stream was waited for since this was last asked."""
        waited_s, self._waited_s = self._waited_s, 0.0
        return waited_s

    def _wait(self, wanted: Callable[[], T]) -> T:
        began_s = time.perf_counter()
        self.waiting = True
        try:
            return wanted()
        finally:
            self.waiting = False
            self._waited_s += time.perf_counter() - began_s
