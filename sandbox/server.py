"""The service: a site behind HTTP, on a Unix socket and, with tokens, on TCP.

When it ends, everything that it started has ended. Nothing that a caller sends is logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request, Response

import rocknroll
from rocknroll.sandbox.errors import SpecInvalid, StateLocked
from rocknroll.sandbox.fleetfile import FleetFile, Listen
from rocknroll.sandbox.service import bodies, holding, looking, problems, working
from rocknroll.sandbox.service.access import Tokens, load_tokens
from rocknroll.sandbox.service.gate import BodyLimit, CallerGone
from rocknroll.sandbox.service.listeners import PeerProtocol, QuietServer, tcp_socket, unix_socket
from rocknroll.sandbox.site import Site
from rocknroll.sandbox.state_folder import StateFolder

GRACE_S = 3
"""For requests under way when the service ends."""
KEEP_ALIVE_S = 75
CALLER_GONE = 499
"""Nobody reads it; the usual number in logs and figures."""


def create_app(site: Site, tokens: Tokens) -> FastAPI:
    """The application; `site` must be open while it answers."""
    app = FastAPI(
        title="rock",
        summary="A fleet of sandboxes: leased with fencing tokens, watched, restarted when they die.",
        version=rocknroll.__version__,
        docs_url=None,  # its pages load scripts from elsewhere
        redoc_url=None,
        responses={"default": {"model": bodies.Problem, "description": "What went wrong"}},
    )
    app.state.site, app.state.tokens, app.state.streams = site, tokens, {}
    for routes in (looking.open_routes, looking.read_routes, looking.operate_routes, holding.routes, working.routes):
        app.include_router(routes)
    problems.install(app)

    @app.exception_handler(CallerGone)
    async def gone(request: Request, error: CallerGone) -> Response:
        return Response(status_code=CALLER_GONE)

    app.add_middleware(BodyLimit)
    return app


async def serve(
    fleet: FleetFile,
    state: StateFolder,
    stop: asyncio.Event,
    environment: Mapping[str, str] = os.environ,
    began: Callable[[Site], None] = lambda site: None,
) -> None:
    """Run a fleet and its service until `stop` is set; `began` is called once it answers.

    Raises:
        SpecInvalid: TCP without tokens, or tokens that cannot be read. StateLocked: the folder has a manager.
        AddressUnavailable: it cannot listen. What opening a `Site` raises.
    """
    tokens = load_tokens(fleet.listen.tokens, environment)
    if fleet.listen.tcp and not tokens:
        raise SpecInvalid(
            f"listening on {fleet.listen.tcp} needs tokens, for whoever reaches it could run programs here: name a"
            " file in `listen.tokens` (a line `operate TOKEN`, mode 0600), or set $ROCK_TOKEN_OPERATE"
        )
    state.prepare()
    if (pid := state.manager()) is not None:
        raise StateLocked(
            f"the manager with pid {pid} works on {state.path} already. End it with `rock down`, or choose another"
            " folder with `--state`."
        )
    with _sockets(fleet.listen, state) as sockets:
        async with Site(fleet, state) as site:
            app = create_app(site, tokens)
            servers = [_server(app, one, fleet.listen) for one in sockets]
            running = [asyncio.create_task(server.serve([one])) for server, one in zip(servers, sockets, strict=True)]
            stopping = asyncio.create_task(stop.wait())
            began(site)
            try:
                await asyncio.wait([stopping, *running], return_when=asyncio.FIRST_COMPLETED)
            finally:
                stopping.cancel()
                site.close_soon()
                for server in servers:
                    server.should_exit = True
                await asyncio.gather(*running)


@contextlib.contextmanager
def _sockets(listen: Listen, state: StateFolder) -> Iterator[list[socket.socket]]:
    """All listening sockets; the Unix socket's file goes at the end."""
    path = listen.unix or state.socket
    with contextlib.ExitStack() as stack:
        sockets: list[socket.socket] = [stack.enter_context(unix_socket(path))]
        stack.callback(Path.unlink, path, missing_ok=True)
        if listen.tcp:
            sockets.append(stack.enter_context(tcp_socket(listen.tcp)))
        yield sockets


def _server(app: FastAPI, listening: socket.socket, listen: Listen) -> QuietServer:
    tls = listening.family != socket.AF_UNIX and listen.certificate is not None
    config = uvicorn.Config(
        app,
        http=PeerProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        backlog=1024,
        ssl_certfile=listen.certificate if tls else None,
        ssl_keyfile=listen.key if tls else None,
    )
    return QuietServer(config)
