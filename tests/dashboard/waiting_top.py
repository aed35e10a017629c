"""Waiting for what an application shows, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from textual.pilot import Pilot

WAIT_S = 60.0
"""Only ever waited in full when a test fails."""


async def until(pilot: Pilot[Any], condition: Callable[[], bool]) -> None:
    """Return once it is so."""
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "it never came true"
        await pilot.pause(0.01)
