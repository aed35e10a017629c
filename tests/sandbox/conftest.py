"""Fleets of real sandboxes for tests."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playthings import HERE, WAIT_S

from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.runtimes.process import Level, ProcessRuntime
from rocknroll.sandbox.spec import EnvSpec, SandboxSpec


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where sandboxes keep their files; pytest's own folders have paths too long for sockets."""
    path = Path(tempfile.mkdtemp(prefix="t-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def make_fleet(folder: Path) -> Callable[..., Fleet]:
    """A fleet of sandboxes named `box-0`, …; `env=True` gives each a Plaything."""

    def make(size: int = 1, level: Level | None = None, env: bool = False, store: Any = None, **fields: Any) -> Fleet:
        if env:
            options = {name: fields.pop(name) for name in ("kwargs", "preload", "make_timeout_s") if name in fields}
            fields["env"] = EnvSpec(entry_point="playthings:Plaything", python_path=(HERE,), **options)
        return Fleet(SandboxSpec(name="box", **fields), size, ProcessRuntime(level, folder=folder), store=store)

    return make


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Wait for a condition on the event loop."""

    async def wait(condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline_s, "condition never came true"
            await asyncio.sleep(0.002)

    return wait
