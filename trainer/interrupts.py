"""What Ctrl-C means to a learner."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interruptible(request_stop: Callable[[], None], waiting: Callable[[], bool]) -> Iterator[threading.Event]:
    """Ctrl-C asks for a stop; while the learner only waits, it ends the wait. A second one interrupts at once.

    Yields the event that says whether it came. Outside the main thread nothing is changed.
    """
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return

    def on_interrupt(_signal: int, _frame: Any) -> None:
        again = interrupted.is_set()
        interrupted.set()
        request_stop()
        if again or waiting():
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
