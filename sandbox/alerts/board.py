"""Which alerts are raised, decided from readings under any clock (pure).

Invariant: of one rule and subject an alert is raised once and resolved once before the next is raised. It is raised
when the condition has held for the rule's `for_s`, resolved when it has been over for `clear_s`; a subject that is not
read any more has no condition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from rocknroll.sandbox.alerts.rule import Alert, Reading, Rule

RESOLVED_KEPT = 200
"""Alerts that are over and still listed."""

_Key = tuple[str, str]


@dataclass
class _Watched:
    """A rule's condition on one subject."""

    since: float | None = None
    """When it began to hold; None while it does not."""
    over_since: float | None = None
    """Of a raised alert: when its condition ended."""
    alert: Alert | None = None


class Board:
    """`restored`: alerts of an earlier board, open and resolved, oldest first."""

    def __init__(self, rules: Iterable[Rule], restored: Iterable[Alert] = ()) -> None:
        self._rules = {rule.name: rule for rule in rules}
        self._watched: dict[_Key, _Watched] = {}
        self._resolved: deque[Alert] = deque(maxlen=RESOLVED_KEPT)
        for alert in restored:
            if alert.resolved is None:
                self._watched[alert.rule, alert.subject] = _Watched(since=alert.since, alert=alert)
            else:
                self._resolved.append(alert)

    @property
    def open(self) -> list[Alert]:
        """Alerts that are not resolved, oldest first."""
        raised = (watched.alert for watched in self._watched.values())
        return sorted((alert for alert in raised if alert is not None), key=lambda alert: alert.since)

    def alerts(self) -> list[Alert]:
        """The open ones, oldest first, then those that are over, newest first."""
        return [*self.open, *reversed(self._resolved)]

    def observe(self, readings: Iterable[Reading], now: float) -> list[Alert]:
        """Alerts that are raised or resolved now, from everything that there is to read at this moment.

        Raises:
            KeyError: a reading names no rule of this board.
        """
        read = {(reading.rule, reading.subject): reading for reading in readings}
        changed = []
        for key in read.keys() | self._watched.keys():
            change = self._judge(key, read.get(key), now)
            if change is not None:
                changed.append(change)
        return sorted(changed, key=lambda alert: (alert.since, alert.rule, alert.subject))

    def _judge(self, key: _Key, reading: Reading | None, now: float) -> Alert | None:
        watched = self._watched.setdefault(key, _Watched())
        if reading is not None and self._holds(reading, watched):
            return self._hold(watched, reading, now)
        return self._let_go(key, watched, now)

    def _holds(self, reading: Reading, watched: _Watched) -> bool:
        rule = self._rules[reading.rule]
        return rule.enabled and rule.holds(reading.value, watched.alert is not None)

    def _hold(self, watched: _Watched, reading: Reading, now: float) -> Alert | None:
        rule = self._rules[reading.rule]
        watched.over_since = None
        if watched.since is None:
            watched.since = now
        if watched.alert is not None or now - watched.since < rule.for_s:
            return None
        watched.alert = Alert(rule.name, reading.subject, rule.severity, watched.since, rule.text(reading))
        return watched.alert

    def _let_go(self, key: _Key, watched: _Watched, now: float) -> Alert | None:
        if watched.alert is None:
            del self._watched[key]
            return None
        if watched.over_since is None:
            watched.over_since = now
        rule = self._rules.get(key[0])
        if now - watched.over_since < (rule.clear_s if rule is not None else 0.0):
            return None
        del self._watched[key]
        resolved = replace(watched.alert, resolved=now)
        self._resolved.append(resolved)
        return resolved
