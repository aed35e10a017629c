"""`--web`: the dashboard in a browser of this machine, through textual-serve. Whoever has the token sees it all.

Listens on loopback alone. The token is in the URL that is printed and, once that was opened, in a cookie; without one
of them nothing is served, neither page nor files nor the WebSocket. Requests that name another host are refused (a
site that resolves to this address could otherwise speak to it), and so are those that another site's page makes.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import shlex
import signal
import socket
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rocknroll.sandbox.errors import AddressUnavailable, RuntimeUnavailable

if TYPE_CHECKING:
    from aiohttp import web
    from aiohttp.typedefs import Handler, Middleware

LOOPBACK = "127.0.0.1"
TOKEN_BYTES = 32
GRACE_S = 0.5
"""For open pages to close when the server ends."""
POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; font-src 'self';"
    " img-src 'self' data:; connect-src 'self' ws://{origin}; frame-ancestors 'none'; base-uri 'none'"
)
"""Nothing is loaded from elsewhere, and no other page may show this one."""
FOCUS = """<script>
  new MutationObserver((changes, watching) => {
    const keys = document.querySelector(".xterm-helper-textarea");
    if (keys) { keys.focus(); watching.disconnect(); }
  }).observe(document.body, {childList: true, subtree: true});
</script></body>"""
"""Keys go to the terminal as soon as it is there; textual-serve waits for a click."""


def serve(command: Sequence[str], port: int = 0) -> None:
    """Serve the application that `rock COMMAND...` is, one process for each page, until Ctrl-C or SIGTERM.

    Raises:
        RuntimeUnavailable: textual-serve is not installed. AddressUnavailable: the port is taken.
    """
    if find_spec("textual_serve") is None:
        raise RuntimeUnavailable(
            "--web shows the dashboard in a browser through textual-serve, which is not installed:"
            " pip install 'rocknroll[web]'"
        )
    asyncio.run(_serve(command, port))


async def _serve(command: Sequence[str], port: int) -> None:
    from aiohttp import web

    logging.getLogger("textual-serve").setLevel(logging.ERROR)
    token = secrets.token_urlsafe(TOKEN_BYTES)
    listening = _listen(port)
    origin = f"{LOOPBACK}:{listening.getsockname()[1]}"
    runner = web.AppRunner(await make_app(command, origin, token), access_log=None, shutdown_timeout=GRACE_S)
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    try:
        await runner.setup()
        await web.SockSite(runner, listening).start()
        print(f"http://{origin}/?token={token}", flush=True)
        print("Open this in a browser of this machine; whoever has it sees it all. Ctrl-C ends it.", file=sys.stderr)
        await over.wait()
    finally:
        await runner.cleanup()


def _listen(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((LOOPBACK, port))
    except OSError as error:
        listening.close()
        raise AddressUnavailable(
            f"{LOOPBACK}:{port} cannot be listened on: {error.strerror}. Choose another port with `--port`, or leave it"
            " out for one that is free."
        ) from error
    return listening


async def make_app(command: Sequence[str], origin: str, token: str) -> web.Application:
    """The application behind `origin` (`host:port`), for those who have `token`."""
    from aiohttp import web
    from textual_serve.server import Server

    @web.middleware
    async def focused(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        if isinstance(response, web.Response) and response.content_type == "text/html" and response.text:
            response.text = response.text.replace("</body>", FOCUS)
        return response

    class Quiet(Server):
        async def on_startup(self, app: web.Application) -> None:
            """It would print a banner on stdout, which is for the URL."""

    words = shlex.join([sys.executable, "-m", "rocknroll.sandbox.cli", *command])
    host, _, port = origin.partition(":")
    app: web.Application = await Quiet(words, host=host, port=int(port), title="rock")._make_app()
    app.middlewares.extend([guard(origin, token), focused])

    async def keep_to_itself(request: web.Request, response: web.StreamResponse) -> None:
        response.headers["Content-Security-Policy"] = POLICY.format(origin=origin)
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Cache-Control"] = "no-store"

    app.on_response_prepare.append(keep_to_itself)
    return app


def guard(origin: str, token: str) -> Middleware:
    """Refuses whoever has no token, and whoever comes by another name."""
    from aiohttp import web

    cookie = f"rock-{origin.rpartition(':')[2]}"  # browsers give a host's cookies to all of its ports

    @web.middleware
    async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.headers.get("Host") != origin:
            raise web.HTTPMisdirectedRequest(text=f"this is {origin}, and nothing else")
        if request.headers.get("Origin", f"http://{origin}") != f"http://{origin}":
            raise web.HTTPForbidden(text="another site's pages have no business here")
        given = request.query.get("token")
        known = given if given is not None else request.cookies.get(cookie, "")
        if not hmac.compare_digest(known.encode(), token.encode()):
            raise web.HTTPUnauthorized(text="open the URL that `rock` has printed: it holds the token")
        if given is not None:
            welcome = web.HTTPSeeOther("/")  # the token goes out of the address bar and the history
            welcome.set_cookie(cookie, token, httponly=True, samesite="Lax")
            raise welcome
        return await handler(request)

    return checked
