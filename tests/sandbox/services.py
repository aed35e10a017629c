"""A real service on a real socket, in the event loop of the test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from rocknroll.sandbox.fleetfile import parse_fleet
from rocknroll.sandbox.server import serve
from rocknroll.sandbox.site import Site
from rocknroll.sandbox.state_folder import StateFolder

BOX = {"box": {"size": 2, "reuse": "reset"}}


@contextlib.asynccontextmanager
async def serving(
    folder: Path,
    pools: Mapping[str, Any] = BOX,
    listen: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    alerts: Mapping[str, Any] | None = None,
) -> AsyncIterator[Site]:
    """The site behind a service with its state in `folder / "state"`, while it answers."""
    fleet = parse_fleet({"pools": pools, "listen": listen or {}, "alerts": alerts or {}}, "test", folder)
    began: asyncio.Future[Site] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    work = serve(fleet, StateFolder(folder / "state"), stop, environment or {}, began.set_result)
    running = asyncio.create_task(work)
    try:
        await asyncio.wait([running, began], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        yield await began
    finally:
        stop.set()
        await running
