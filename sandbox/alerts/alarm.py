"""Who is told of alerts: a record, and what the configuration names. Never blocks, and never fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from rocknroll.sandbox.alerts.board import Board
from rocknroll.sandbox.alerts.notify import Notifier
from rocknroll.sandbox.alerts.rule import Alert, Reading


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
            self.raised[alert.rule] += alert.resolved is None
            self._notifier.tell(alert)
            self._record(alert)
        return changed

    def alerts(self) -> list[Alert]:
        """The open ones, oldest first, then those that are over, newest first."""
        return self._board.alerts()

    def close(self) -> None:
        """Let what was begun be told, for a moment."""
        self._notifier.close()
