"""Waiting for conditions, and looking at processes from outside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import psutil

WAIT_S = 60.0
"""Only ever waited in full when a test fails."""


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition, synchronously."""
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"never happened: {what}"
        time.sleep(0.01)


async def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition while the event loop goes on."""
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"never happened: {what}"
        await asyncio.sleep(0.01)


def below(pid: int | None = None) -> list[psutil.Process]:
    """Living processes below one, this one by default."""
    children = psutil.Process(pid).children(recursive=True)
    return [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
