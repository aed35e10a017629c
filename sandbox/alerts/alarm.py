"""Who is told of alerts: the log, a record, and what the configuration names. Never blocks, and never fails.

Times are seconds since the epoch by a clock that does not step: durations are as true as by a monotonic one.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable

from rocknroll.sandbox.alerts.board import Board
from rocknroll.sandbox.alerts.notify import Notifier
from rocknroll.sandbox.alerts.rule import Alert, Reading

_log = logging.getLogger(__name__)


def steady_clock() -> Callable[[], float]:
    """Seconds since the epoch as they were at the start, and from there on as fast as a monotonic clock."""
    began = time.time() - time.monotonic()
    return lambda: began + time.monotonic()


class Alarm:
    """A board, and whom it tells. `record` writes an alert down, raised or resolved, and may raise nothing."""

    def __init__(self, board: Board, notifier: Notifier, record: Callable[[Alert], None]) -> None:
        self._board, self._notifier, self._record = board, notifier, record
        self.raised: Counter[str] = Counter()
        """Alerts since the start, by rule."""

    def observe(self, readings: Iterable[Reading], now: float) -> list[Alert]:
        """Judge everything that there is to read, tell what is raised or resolved by it, and return that."""
        changed = self._board.observe(readings, now)
        for alert in changed:
            if alert.resolved is None:
                self.raised[alert.rule] += 1
                _log.warning("alert %s (%s): %s", alert.rule, alert.severity, alert.text)
            else:
                lasted_s = alert.resolved - alert.since
                _log.warning("alert %s on %s is over after %.0f s", alert.rule, alert.subject, lasted_s)
            self._notifier.tell(alert)
            self._record(alert)
        return changed

    def alerts(self) -> list[Alert]:
        """The open ones, oldest first, then those that are over, newest first."""
        return self._board.alerts()

    def close(self) -> None:
        """Let what was begun be told, for a moment."""
        self._notifier.close()
