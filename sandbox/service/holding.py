"""Routes of those who hold a sandbox. The fencing token is in every path: a lease that is over answers 409."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Query, Request, Response, status
from fastapi.responses import StreamingResponse

from rocknroll.sandbox.errors import SpecInvalid
from rocknroll.sandbox.leased import LeasedSandbox
from rocknroll.sandbox.service import bodies
from rocknroll.sandbox.service.answers import exec_answer
from rocknroll.sandbox.service.gate import SiteHere, may_operate, peer, unless_gone
from rocknroll.sandbox.service.transfer import file_pieces, fill_folder, folder_pieces
from rocknroll.sandbox.site import Site

routes = APIRouter(prefix="/v1/leases", dependencies=[Depends(may_operate)])


async def held(site: SiteHere, token: int) -> LeasedSandbox:
    return site.held(token)


Held = Annotated[LeasedSandbox, Depends(held)]


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
    return _state(site, sandbox)


@routes.get("/{token}")
async def look(site: SiteHere, sandbox: Held) -> bodies.LeaseState:
    """Looking renews nothing."""
    return _state(site, sandbox)


@routes.post("/{token}/heartbeat")
async def heartbeat(
    site: SiteHere, sandbox: Held, beat: Annotated[bodies.Heartbeat | None, Body()] = None
) -> bodies.LeaseState:
    """Move the deadline."""
    sandbox.heartbeat(None if beat is None else beat.ttl_s)
    return _state(site, sandbox)


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
    return exec_answer(done)


@routes.get("/{token}/files", response_class=StreamingResponse)
async def read(sandbox: Held, path: str) -> StreamingResponse:
    """The bytes of a file, streamed."""
    return StreamingResponse(await _begun(file_pieces(sandbox, path)), media_type="application/octet-stream")


@routes.put("/{token}/files", status_code=status.HTTP_204_NO_CONTENT)
async def write(
    request: Request, sandbox: Held, path: str, mode: Annotated[int | None, Query(ge=0, le=0o7777)] = None
) -> Response:
    """Create or overwrite a file with the raw body, streamed; folders are made."""
    await sandbox.write_from(path, request.stream(), mode)
    return Response(status_code=status.HTTP_204_NO_CONTENT)


@routes.get("/{token}/archive", response_class=StreamingResponse)
async def read_folder(sandbox: Held, path: str) -> StreamingResponse:
    """A folder as a tar stream. What cannot be read on the way ends the connection early."""
    return StreamingResponse(await _begun(folder_pieces(sandbox, path)), media_type="application/x-tar")


@routes.put("/{token}/archive", status_code=status.HTTP_204_NO_CONTENT)
async def write_folder(request: Request, sandbox: Held, path: str) -> Response:
    """Unpack a tar stream into a folder; entries that lead out of it are refused."""
    await fill_folder(sandbox, path, request.stream())
    return Response(status_code=status.HTTP_204_NO_CONTENT)


@routes.get("/{token}/stat")
async def stat(sandbox: Held, path: str) -> bodies.FileAnswer:
    """What is at a path; links are not followed."""
    found = await sandbox.stat(path)
    return bodies.FileAnswer(kind=found.kind, size_bytes=found.size_bytes, mode=found.mode, modified_s=found.modified_s)


async def _begun(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The pieces, of which the first is there: what is wrong with a path is said before a status is sent."""
    first = await anext(pieces, b"")

    async def all_of_them() -> AsyncIterator[bytes]:
        yield first
        async for piece in pieces:
            yield piece

    return all_of_them()


def _caller(request: Request) -> int:
    pid = peer(request).pid
    if pid is None:
        raise SpecInvalid("`bind_to_process` needs the Unix socket, and a caller whose process this machine sees")
    return pid


def _state(site: Site, sandbox: LeasedSandbox) -> bodies.LeaseState:
    row = site.lease_row(sandbox.token)
    return bodies.LeaseState(
        token=row.token,
        sandbox=row.sandbox_id,
        owner=row.owner,
        ttl_s=row.ttl_s,
        deadline=row.deadline,
        python=list(sandbox.python),
        env=sandbox.env,
    )
