"""The clock of alerts: seconds since the epoch that never step, so that durations are true, too."""

from __future__ import annotations

import time
from collections.abc import Callable


def steady_clock() -> Callable[[], float]:
    """Seconds since the epoch as they were at the start, and from there on as fast as a monotonic clock."""
    began = time.time() - time.monotonic()
    return lambda: began + time.monotonic()
