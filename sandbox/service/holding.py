"""Routes of those who hold a sandbox. The fencing token is in every path: a lease that is over answers 409."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Query, Request, Response, status
from fastapi.responses import StreamingResponse

from rocknroll.sandbox.errors import SpecInvalid
from rocknroll.sandbox.leased import LeasedSandbox
from rocknroll.sandbox.service import bodies
from rocknroll.sandbox.service.gate import SiteHere, may_operate, peer, unless_gone
from rocknroll.sandbox.service.transfer import read_chunks, write_chunks
from rocknroll.sandbox.site import Site

routes = APIRouter(prefix="/v1/leases", dependencies=[Depends(may_operate)])


async def _held(site: SiteHere, token: int) -> LeasedSandbox:
    return site.held(token)


Held = Annotated[LeasedSandbox, Depends(_held)]


@routes.post("", status_code=status.HTTP_201_CREATED)
async def lease(request: Request, site: SiteHere, wish: bodies.LeaseWish) -> bodies.LeaseState:
    """Wait for a sandbox. A caller that closes its connection meanwhile gets none."""
    pid = _caller(request) if wish.bind_to_process else None
    work = (
        site.lease(wish.pool, wish.owner, wish.ttl_s, wish.timeout_s, pid)
        if wish.pool is not None
        else site.lease_one(wish.sandbox or "", wish.owner, wish.ttl_s, pid)
    )
    sandbox = await unless_gone(request, work)
    return _state(site, sandbox.token)


@routes.get("/{token}")
async def look(site: SiteHere, sandbox: Held) -> bodies.LeaseState:
    """Looking renews nothing."""
    return _state(site, sandbox.token)


@routes.post("/{token}/heartbeat")
async def heartbeat(
    site: SiteHere, sandbox: Held, beat: Annotated[bodies.Heartbeat | None, Body()] = None
) -> bodies.LeaseState:
    """Move the deadline."""
    sandbox.heartbeat(None if beat is None else beat.ttl_s)
    return _state(site, sandbox.token)


@routes.delete("/{token}", status_code=status.HTTP_204_NO_CONTENT)
async def release(sandbox: Held, recycle: bool = False) -> Response:
    """Give the sandbox back; `recycle` asks for a fresh instance whatever its specification says."""
    await sandbox.release(recycle)
    return Response(status_code=status.HTTP_204_NO_CONTENT)


@routes.post("/{token}/exec")
async def execute(request: Request, sandbox: Held, wish: bodies.ExecWish) -> bodies.ExecAnswer:
    """Run a command to its end, its deadline, or the end of this connection."""
    done = await unless_gone(
        request,
        sandbox.exec(wish.command, wish.timeout_s, wish.stdin, wish.cwd, wish.variables, wish.output_bytes),
    )
    return bodies.ExecAnswer(
        exit_code=done.exit_code,
        stdout=base64.b64encode(done.stdout).decode(),
        stderr=base64.b64encode(done.stderr).decode(),
        stdout_cut_bytes=done.stdout_cut_bytes,
        stderr_cut_bytes=done.stderr_cut_bytes,
        timed_out=done.timed_out,
        wall_s=done.wall_s,
    )


@routes.get("/{token}/files", response_class=StreamingResponse)
async def read(sandbox: Held, path: str) -> StreamingResponse:
    """The bytes of a file, streamed."""
    chunks = read_chunks(sandbox, path)
    first = await anext(chunks)  # what is wrong with the path is said before a status is sent

    async def stream() -> AsyncIterator[bytes]:
        yield first
        async for chunk in chunks:
            yield chunk

    return StreamingResponse(stream(), media_type="application/octet-stream")


@routes.put("/{token}/files", status_code=status.HTTP_204_NO_CONTENT)
async def write(
    request: Request, sandbox: Held, path: str, mode: Annotated[int | None, Query(ge=0, le=0o7777)] = None
) -> Response:
    """Create or overwrite a file with the raw body, streamed; folders are made."""
    await write_chunks(sandbox, path, request.stream(), mode)
    return Response(status_code=status.HTTP_204_NO_CONTENT)


@routes.get("/{token}/stat")
async def stat(sandbox: Held, path: str) -> bodies.FileAnswer:
    """What is at a path; links are not followed."""
    found = await sandbox.stat(path)
    return bodies.FileAnswer(kind=found.kind, size_bytes=found.size_bytes, mode=found.mode, modified_s=found.modified_s)


def _caller(request: Request) -> int:
    pid = peer(request).pid
    if pid is None:
        raise SpecInvalid("`bind_to_process` needs the Unix socket, and a caller whose process this machine sees")
    return pid


def _state(site: Site, token: int) -> bodies.LeaseState:
    row = site.lease_row(token)
    return bodies.LeaseState(
        token=row.token, sandbox=row.sandbox_id, owner=row.owner, ttl_s=row.ttl_s, deadline=row.deadline
    )
