"""Processes as owners of things: who is meant by a pid, whether it still lives, and word when it ends.

A pid alone is used again by the kernel; with the start time it means one process for ever.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path


def identity(pid: int) -> str:
    """`pid:start time` of a living process (start time in clock ticks since boot), or empty when there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else f"{pid}:{fields[19]}"


def is_alive(owner: str) -> bool:
    """Whether the process of an `identity` still runs."""
    return bool(owner) and identity(int(owner.partition(":")[0])) == owner


def watch(pid: int, ended: Callable[[], None]) -> Callable[[], None]:
    """Call `ended` on the running loop once the process is gone, at once if it is already; returns what cancels it."""
    loop = asyncio.get_running_loop()
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        handle = loop.call_soon(ended)
        return handle.cancel

    watching = True

    def cancel() -> None:
        nonlocal watching
        if watching:
            watching = False
            loop.remove_reader(fd)
            os.close(fd)

    def readable() -> None:
        cancel()
        ended()

    loop.add_reader(fd, readable)
    return cancel
