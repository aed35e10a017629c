"""What every request passes: its body is counted, its caller is known, and it ends when its caller goes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rocknroll.sandbox.errors import TooLarge
from rocknroll.sandbox.service.access import UNKNOWN, Peer, Role, Tokens, check_role
from rocknroll.sandbox.service.problems import problem
from rocknroll.sandbox.site import Site

BODY_LIMIT_BYTES = 48 << 20
"""Of all requests but those whose body is streamed: 32 MiB as base64, and room for the rest."""
STREAMED = ("/files", "/archive", "/stdin")
ResultT = TypeVar("ResultT")


class BodyLimit:
    """Refuses bodies over the limit, announced or not; what is streamed into a sandbox is not limited here."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["method"] == "PUT" and scope["path"].endswith(STREAMED)):
            await self._app(scope, receive, send)
            return
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > BODY_LIMIT_BYTES:
                raise _too_large()
            return message

        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > BODY_LIMIT_BYTES:
            await problem(_too_large())(scope, receive, send)
            return
        await self._app(scope, counted, send)


def _too_large() -> TooLarge:
    return TooLarge(f"the body has more than {BODY_LIMIT_BYTES} bytes; send large data as a file")


# Dependencies are coroutines, for the framework runs plain functions in threads, and a site belongs to one.
async def the_site(request: Request) -> Site:
    site: Site = request.app.state.site
    return site


def peer(request: Request) -> Peer:
    found: Peer = getattr(request.state, "peer", UNKNOWN)
    return found


async def role(request: Request) -> Role:
    """The caller's role; see `Tokens.role`."""
    if peer(request).local:
        return Role.OPERATE
    tokens: Tokens = request.app.state.tokens
    return tokens.role(request.headers.get("authorization"))


async def may_read(caller: Annotated[Role, Depends(role)]) -> None:
    check_role(caller, Role.READ)


async def may_operate(caller: Annotated[Role, Depends(role)]) -> None:
    check_role(caller, Role.OPERATE)


SiteHere = Annotated[Site, Depends(the_site)]


class CallerGone(Exception):
    """The caller closed its connection before the answer."""


async def unless_gone(request: Request, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """The result of `work`, which is cancelled when the caller goes away. The body must have been read.

    Raises:
        CallerGone: nobody is there to be answered.
    """
    working = asyncio.ensure_future(work)
    going = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, going}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise CallerGone
    finally:
        for task in (working, going):
            task.cancel()
        await asyncio.gather(working, going, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
