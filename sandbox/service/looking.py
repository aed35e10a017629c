"""Routes that look at pools, sandboxes and events, and an operator's few commands on them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query
from fastapi.responses import PlainTextResponse, StreamingResponse

import rocknroll
from rocknroll.sandbox.errors import LeaseTimeout
from rocknroll.sandbox.overview import event_json
from rocknroll.sandbox.service import bodies
from rocknroll.sandbox.service.gate import SiteHere, may_operate, may_read
from rocknroll.sandbox.service.metrics import exposition
from rocknroll.sandbox.site import Site

KEEP_ALIVE_S = 15.0
"""Between two signs of life on a stream without events, so that proxies leave it open."""
STREAM_BATCH = 500

open_routes = APIRouter()
read_routes = APIRouter(dependencies=[Depends(may_read)])
operate_routes = APIRouter(dependencies=[Depends(may_operate)])


@open_routes.get("/healthz")
async def healthz() -> bodies.Health:
    """The service answers. Nothing is said about the sandboxes, and no token is needed."""
    return bodies.Health(status="ok", version=rocknroll.__version__)


@read_routes.get("/metrics", response_class=PlainTextResponse)
async def metrics(site: SiteHere) -> PlainTextResponse:
    """For Prometheus."""
    text, content_type = exposition(site)
    return PlainTextResponse(text, media_type=content_type)


@read_routes.get("/v1/pools")
async def pools(site: SiteHere) -> bodies.PoolList:
    return bodies.PoolList.model_validate({"pools": site.pools()})


@read_routes.get("/v1/ready")
async def ready(site: SiteHere, timeout_s: Annotated[float, Query(ge=0, le=3600)] = 60.0) -> bodies.Readiness:
    """Wait until every pool has the sandboxes that are wanted of it."""
    try:
        async with asyncio.timeout(timeout_s):
            await site.wait_ready()
    except TimeoutError:
        states = {pool["name"]: {k: n for k, n in pool["states"].items() if n} for pool in site.pools()}
        raise LeaseTimeout(f"the pools were not READY within {timeout_s:g} s; states: {states}") from None
    return bodies.Readiness(ready=True)


@read_routes.get("/v1/sandboxes")
async def sandboxes(site: SiteHere, pool: str | None = None, state: str | None = None) -> bodies.SandboxList:
    rows = [row for row in site.snapshot() if pool in (None, row["pool"]) and state in (None, row["state"])]
    return bodies.SandboxList.model_validate({"sandboxes": rows})


@read_routes.get("/v1/overview")
async def overview(site: SiteHere, events: Annotated[int, Query(ge=0, le=10_000)] = 200) -> bodies.Overview:
    """All that a dashboard shows in one refresh."""
    return bodies.Overview.model_validate(await site.overview(events))


@read_routes.get("/v1/sandboxes/{sandbox}")
async def sandbox(site: SiteHere, sandbox: str) -> bodies.SandboxDescription:
    """`sandbox` is an id or the beginning of one that no other shares."""
    return bodies.SandboxDescription.model_validate(await site.describe(sandbox))


@operate_routes.post("/v1/sandboxes/{sandbox}/restart")
async def restart(site: SiteHere, sandbox: str) -> bodies.Restarted:
    """A fresh instance, out of quarantine if need be; a lease on it is lost."""
    return bodies.Restarted(id=site.restart(sandbox))


@operate_routes.delete("/v1/sandboxes/{sandbox}")
async def remove(site: SiteHere, sandbox: str) -> bodies.Removed:
    """End it and keep its place empty until a restart; a lease on it is lost."""
    return bodies.Removed(id=site.remove(sandbox))


@operate_routes.post("/v1/sandboxes/{sandbox}/commit")
async def commit(site: SiteHere, sandbox: str, wish: bodies.CommitWish) -> bodies.Committed:
    """Snapshot a sandbox with `writable_root` into a Docker image, from which others start warm."""
    return bodies.Committed(image=await site.commit(sandbox, wish.tag), tag=wish.tag)


@operate_routes.patch("/v1/pools/{pool}")
async def scale(site: SiteHere, pool: str, wish: bodies.Scale) -> bodies.PoolRow:
    """Another size; sandboxes that are too many go when nobody holds them."""
    site.scale(pool, wish.size, wish.ready)
    return bodies.PoolRow.model_validate(next(row for row in site.pools() if row["name"] == pool))


@read_routes.get("/v1/alerts")
async def alerts(site: SiteHere) -> bodies.AlertList:
    """The open ones, oldest first, then those that are over, newest first."""
    return bodies.AlertList.model_validate({"alerts": site.alerts()})


@read_routes.get("/v1/events")
async def events(
    site: SiteHere,
    after: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000,
    newest: bool = False,
) -> bodies.EventList:
    """Events above `after`, oldest first; with `newest` the last `limit` of them all."""
    rows = site.newest_events(limit) if newest else site.events(after, limit)
    return bodies.EventList.model_validate({"events": [event_json(row) for row in rows]})


@read_routes.get("/v1/events/stream", response_class=StreamingResponse)
async def event_stream(
    site: SiteHere,
    after: Annotated[int, Query(ge=0)] = 0,
    last_event_id: Annotated[int | None, Header(ge=0)] = None,
) -> StreamingResponse:
    """Server-sent events, from `Last-Event-ID` or `after` on and then as they happen."""
    start = after if last_event_id is None else last_event_id
    return StreamingResponse(
        _stream(site, start), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
    )


async def _stream(site: Site, after: int) -> AsyncIterator[str]:
    while not site.closing.is_set():
        rows = site.events(after, STREAM_BATCH)
        if rows:
            after = rows[-1].seq
            yield "".join(_server_sent(event_json(row)) for row in rows)
            continue
        try:
            async with asyncio.timeout(KEEP_ALIVE_S):
                await site.changed()
        except TimeoutError:
            yield ": still here\n\n"


def _server_sent(event: dict[str, Any]) -> str:
    return f"id: {event['seq']}\nevent: {event['kind']}\ndata: {json.dumps(event)}\n\n"
