"""A webhook's other side: remembers what is posted to it, and answers as told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Hook:
    """`answers`: the status of each request in turn, and 204 when they are used up."""

    def __init__(self) -> None:
        self.posted: list[dict[str, Any]] = []
        self.answers: list[int] = []
        self.open = threading.Event()
        """While it is clear, nobody gets an answer."""
        self.open.set()
        self.url = ""


@contextmanager
def listening() -> Iterator[Hook]:
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            hook.open.wait()
            hook.posted.append(body)
            self.send_response(hook.answers.pop(0) if hook.answers else 204)
            self.end_headers()

        def log_message(self, *words: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hook.url = f"http://127.0.0.1:{server.server_address[1]}/secret"
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    try:
        yield hook
    finally:
        hook.open.set()
        server.shutdown()
        serving.join()
        server.server_close()
