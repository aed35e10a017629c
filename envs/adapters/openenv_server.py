"""An OpenEnv server over leased sandboxes: `GenericEnvClient(base_url)` of OpenEnv plays any family's tasks.

A WebSocket is a session and plays one episode after another, each in a lease of its own. The lease is
taken by `reset` and given back with the episode's last step, or with whatever ends the session: a close,
a broken or half-open connection (pings), silence (`idle_s`), the server's end. So nobody who is not
playing holds a sandbox, and a session that cannot begin leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import uvicorn
from fastapi import FastAPI, WebSocket
from fastapi.websockets import WebSocketDisconnect
from pydantic import BaseModel

from rocknroll import __version__
from rocknroll.envs.adapters.openenv_session import Session, Tasks
from rocknroll.envs.adapters.openenv_wire import EpisodeState, TextAction, TextObservation, error_frame
from rocknroll.envs.places import Patience, open_places
from rocknroll.envs.registry import family as make_family
from rocknroll.envs.text import Family, Places
from rocknroll.sandbox.errors import RuntimeUnavailable, SpecInvalid, Unauthenticated
from rocknroll.sandbox.runtimes.base import Runtime
from rocknroll.sandbox.service.access import Role, Tokens
from rocknroll.sandbox.service.listeners import QuietServer, tcp_socket

QUEUED = 16
"""Requests that a client may send ahead; more wait in its socket."""
SHUTDOWN_S = 5
"""For sessions to end when the server does."""


@dataclass(frozen=True)
class Access:
    """Who may play. Browsers send an `Origin`, clients do not: a page must not reach a server on this machine."""

    token: str | None = field(default=None, repr=False)
    origins: tuple[str, ...] = ()

    def admits(self, headers: Mapping[str, str]) -> bool:
        """Whether a WebSocket with these headers may be opened."""
        origin = headers.get("origin")
        if origin is not None and origin not in self.origins:
            return False
        if self.token is None:
            return True
        try:
            Tokens({self.token: Role.OPERATE}).role(headers.get("authorization"))
        except Unauthenticated:
            return False
        return True

    def check(self, host: str) -> None:
        """Raise SpecInvalid where everyone who reaches this machine could play."""
        try:
            loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            loopback = False
        if not loopback and self.token is None:
            raise SpecInvalid(f"whoever reaches {host} could use the sandboxes; give a token, or listen on 127.0.0.1")


def create_app(family: Family, places: Places, access: Access, idle_s: float) -> FastAPI:
    """The application; `idle_s` is how long a session may be silent."""
    app = FastAPI(title=f"{family.name} (OpenEnv)", version=__version__, docs_url=None, redoc_url=None)
    tasks = Tasks(family)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "healthy"}

    @app.get("/metadata")
    async def metadata() -> dict[str, Any]:
        return {"name": family.name, "description": family.instructions, "version": __version__}

    @app.get("/schema")
    async def schema() -> dict[str, Any]:
        parts: dict[str, type[BaseModel]] = {
            "action": TextAction,
            "observation": TextObservation,
            "state": EpisodeState,
        }
        return {name: part.model_json_schema() for name, part in parts.items()}

    @app.websocket("/ws")
    async def play(socket: WebSocket) -> None:
        if not access.admits(socket.headers):
            await socket.close()
            return
        await socket.accept()
        await _converse(socket, Session(places, tasks), idle_s)

    return app


@asynccontextmanager
async def listening(app: FastAPI, host: str = "127.0.0.1", port: int = 0, ping_s: float = 20.0) -> AsyncIterator[str]:
    """Serve an application of `create_app`, and give its address (`http://host:port`).

    Args:
        port: 0 takes a free one.
        ping_s: between pings; a connection that does not answer one in the same time is ended.

    Raises:
        AddressUnavailable: the port is taken. RuntimeUnavailable: the package `websockets` is missing.
    """
    if find_spec("websockets") is None:
        raise RuntimeUnavailable("the server needs the package `websockets`: pip install 'rocknroll[openenv]'")
    socket = tcp_socket(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    options = uvicorn.Config(
        app,
        ws_ping_interval=ping_s,
        ws_ping_timeout=ping_s,
        timeout_graceful_shutdown=SHUTDOWN_S,
        lifespan="off",
        log_level="warning",
    )
    server = QuietServer(options)
    running = asyncio.create_task(server.serve(sockets=[socket]))
    bound, number = socket.getsockname()[:2]
    try:
        yield f"http://[{bound}]:{number}" if ":" in bound else f"http://{bound}:{number}"
    finally:
        server.should_exit = True
        await running


@asynccontextmanager
async def serving(
    family: str | Family,
    config: Mapping[str, Any] | None = None,
    *,
    count: int,
    host: str = "127.0.0.1",
    port: int = 0,
    access: Access | None = None,
    idle_s: float = 900.0,
    ping_s: float = 20.0,
    patience: Patience | None = None,
    runtime: Runtime | None = None,
) -> AsyncIterator[str]:
    """Open what a family needs and serve it; gives the address.

    Args:
        count: episodes at once; who wants one more waits for `patience.sandbox_s`, then reads CAPACITY_REACHED.
        idle_s: a session without a request for so long is ended.
        port, ping_s: see `listening`.

    Raises:
        UnknownFamily, pydantic.ValidationError, EnvDataError: as `registry.family`.
        SpecInvalid: the host is not this machine alone, and there is no token.
        AddressUnavailable, RuntimeUnavailable: see `listening`; or sandboxes cannot be had here.
    """
    access = access or Access()
    access.check(host)
    made = make_family(family, config) if isinstance(family, str) else family
    await asyncio.to_thread(made.prepare)
    async with (
        open_places(made, count, patience or Patience(), runtime) as places,
        listening(create_app(made, places, access, idle_s), host, port, ping_s) as url,
    ):
        yield url


async def serve(
    family: str | Family, config: Mapping[str, Any] | None = None, *, count: int, port: int = 8000, **options: Any
) -> None:
    """Serve until cancelled (under `asyncio.run`: until Ctrl-C); `options` as of `serving`."""
    async with serving(family, config, count=count, port=port, **options) as url:
        print(f"OpenEnv server at {url}", flush=True)
        await asyncio.Event().wait()


async def _converse(socket: WebSocket, session: Session, idle_s: float) -> None:
    """Answer one request after another, until either side ends it. A client that goes cancels what it asked for."""
    incoming: asyncio.Queue[str] = asyncio.Queue(QUEUED)
    try:
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(_listen(socket, incoming))
            while True:
                async with asyncio.timeout(idle_s):
                    request = await incoming.get()
                reply = await session.answer(request)
                if reply is None:
                    break
                await socket.send_json(reply)
            listening.cancel()
            await session.end()
            await socket.close()
    except* WebSocketDisconnect:
        pass
    except* TimeoutError:
        await session.end()
        with suppress(WebSocketDisconnect):
            await socket.send_json(error_frame("SESSION_ERROR", f"silent for {idle_s:g} s; the session is over"))
            await socket.close()
    finally:
        await session.end()


async def _listen(socket: WebSocket, incoming: asyncio.Queue[str]) -> None:
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1006))
        await incoming.put(message.get("text") or "")
