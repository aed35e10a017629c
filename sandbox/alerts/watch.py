"""Looks at the fleets of a manager again and again, raises their alerts, and keeps them on record."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from rocknroll.sandbox.alerts.alarm import Alarm
from rocknroll.sandbox.alerts.board import RESOLVED_KEPT, Board
from rocknroll.sandbox.alerts.clock import steady_clock
from rocknroll.sandbox.alerts.config import FleetAlerts
from rocknroll.sandbox.alerts.fleet import fleet_rules
from rocknroll.sandbox.alerts.notify import Notifier
from rocknroll.sandbox.alerts.readings import FleetReader
from rocknroll.sandbox.alerts.rule import Alert
from rocknroll.sandbox.errors import StoreFailed
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.leftovers import docker_leftovers
from rocknroll.sandbox.nodes import this_node
from rocknroll.sandbox.store import Store

RAISED, RESOLVED = "alert_raised", "alert_resolved"
"""Kinds of the events that tell of alerts."""

_log = logging.getLogger(__name__)


class FleetWatch:
    """Use as an async context manager, while the fleets are open; goes on with the open alerts on record.

    `folders`: those whose disks matter, by what alerts call them.

    Raises:
        SpecInvalid: the webhook's URL is not where the configuration says. StoreFailed: the record cannot be read.
    """

    def __init__(
        self,
        config: FleetAlerts,
        fleets: Mapping[str, Fleet],
        folders: Mapping[str, Path],
        store: Store,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._every_s, self._store = config.every_s, store
        docker = any(fleet.runtime.name == "docker" for fleet in fleets.values())
        self._reader = FleetReader(fleets, folders, "the manager", _leftovers if docker else None)
        board = Board(fleet_rules(config.rules), store.alerts(RESOLVED_KEPT))
        origin = {"from": "rock", "host": this_node(), "state": str(folders.get("the state folder", ""))}
        self._alarm = Alarm(board, Notifier(config, origin, environment), self._record)
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._watching = asyncio.create_task(self._watch(), name="alerts")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        await asyncio.to_thread(self._alarm.close)

    def alerts(self) -> list[Alert]:
        """The open ones, oldest first, then those that are over, newest first."""
        return self._alarm.alerts()

    @property
    def raised(self) -> Counter[str]:
        """Alerts since the manager began, by rule."""
        return self._alarm.raised

    async def _watch(self) -> None:
        clock, well = steady_clock(), True
        while True:
            now = clock()
            try:
                self._alarm.observe(await self._reader.read(now), now)
                well = True
            except Exception:  # an alert that cannot be judged must not end the watch over the others
                if well:
                    _log.exception("the fleet cannot be looked at for alerts; this is said once, and tried again")
                well = False
            await asyncio.sleep(self._every_s)

    def _record(self, alert: Alert) -> None:
        """A line in the log, a row and an event; on a full disk, of which an alert may tell, only the line."""
        if alert.resolved is None:
            _log.warning("alert %s (%s): %s", alert.rule, alert.severity, alert.text)
        else:
            _log.warning("alert %s on %s is over after %.0f s", alert.rule, alert.subject, alert.resolved - alert.since)
        kind = RAISED if alert.resolved is None else RESOLVED
        with contextlib.suppress(StoreFailed):
            self._store.put_alert(alert)
            self._store.add_event(alert.subject, kind, f"{alert.rule}: {alert.text}")


async def _leftovers() -> list[str]:
    """Containers of dead fleets; none while Docker's daemon does not answer, for starts tell of that."""
    found, _ = await asyncio.to_thread(docker_leftovers, False)
    return [each.container for each in found]
