"""One look without an application: as text for people, as JSON for scripts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Any

from rocknroll.dashboard.figures import counts, panels
from rocknroll.dashboard.snapshot import AlertFacts, Snapshot
from rocknroll.dashboard.text import one_line
from rocknroll.dashboard.verdict import Level, judge

LABEL_CHARS = 12
ALERTS = 10
TROUBLED = 10
"""Sandboxes that are listed by name."""
ERROR_CHARS = 60


def as_text(snapshot: Snapshot) -> str:
    """The overview on some forty lines."""
    return "\n".join(_lines(snapshot))


def as_json(snapshot: Snapshot) -> dict[str, Any]:
    """What scripts rely on; see docs/dashboard.md."""
    verdict = judge(snapshot)
    return {
        "verdict": str(verdict.level),
        "reasons": list(verdict.reasons),
        "counts": counts(snapshot),
        "alerts": [asdict(alert) for alert in lasting(snapshot)],
        "at": snapshot.at,
    }


def lasting(snapshot: Snapshot) -> tuple[AlertFacts, ...]:
    """Alerts of fleet and run that are not over, newest first."""
    found = [alert for part in (snapshot.fleet, snapshot.run) if part is not None for alert in part.alerts]
    return tuple(sorted((one for one in found if one.resolved is None), key=lambda one: -one.since))


def _lines(snapshot: Snapshot) -> Iterator[str]:
    verdict = judge(snapshot)
    yield str(verdict.level).upper()
    for reason in verdict.reasons:
        yield f"  {reason}"
    for panel in panels(snapshot):
        yield ""
        yield panel.title
        for figure in panel.figures:
            yield f"  {figure.label:{LABEL_CHARS}}{figure.value}"
    alerts = lasting(snapshot)
    if alerts:
        yield ""
        yield "Alerts"
    for alert in alerts[:ALERTS]:
        at = datetime.fromtimestamp(alert.since).strftime("%Y-%m-%d %H:%M:%S")
        yield f"  {at}  {one_line(alert.severity)} {one_line(alert.subject)}: {one_line(alert.text)}"
    if snapshot.fleet is not None:
        found = [one for one in snapshot.fleet.sandboxes if one.state in ("QUARANTINED", "DEAD", "SUSPECT")]
        if found:
            yield ""
            yield "In trouble"
        for one in found[:TROUBLED]:
            error = one_line(one.last_error or "", ERROR_CHARS)
            yield f"  {one_line(one.id):20}{one.state:13}{one.restarts:4d} restarts  {error}".rstrip()
        if len(found) > TROUBLED:
            yield f"  and {len(found) - TROUBLED} more"


def is_down(snapshot: Snapshot) -> bool:
    return judge(snapshot).level is Level.DOWN
