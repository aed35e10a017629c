"""Processes as owners: identity, life and end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable

import pytest

from rocknroll.sandbox.owner import identity, is_alive, watch

Eventually = Callable[[Callable[[], bool]], Awaitable[None]]


def test_a_process_is_known_by_more_than_its_pid() -> None:
    me = identity(os.getpid())
    assert me.startswith(f"{os.getpid()}:")
    assert is_alive(me)
    assert not is_alive(f"{os.getpid()}:1")
    assert not is_alive("")


def test_a_process_that_ended_is_not_alive_even_as_a_zombie() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    known = identity(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(known)
    child.wait()
    assert not is_alive(known)


@pytest.mark.asyncio
async def test_the_end_of_a_watched_process_is_told_once_and_not_when_cancelled(eventually: Eventually) -> None:
    told: list[str] = []
    first, second = subprocess.Popen(["sleep", "1000"]), subprocess.Popen(["sleep", "1000"])
    watch(first.pid, lambda: told.append("first"))
    cancel = watch(second.pid, lambda: told.append("second"))
    cancel()
    for child in (first, second):
        child.send_signal(signal.SIGKILL)
        await asyncio.to_thread(child.wait)
    await eventually(lambda: bool(told))
    watch(first.pid, lambda: told.append("late"))
    await eventually(lambda: len(told) == 2)
    assert told == ["first", "late"]
