"""A headless Chromium, driven over its DevTools protocol: what it shows, what it is sent, and keys."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
WAIT_S = 120.0
"""Only ever waited in full when a test fails."""


def installed() -> str | None:
    """The browser's command."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """The one page of the browser."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._calls = 0
        self.received = b""
        """What the page's WebSocket brought."""

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser something; what happens meanwhile is noted."""
        self._calls += 1
        self._connection.send(json.dumps({"id": self._calls, "method": method, "params": parameters}))
        while True:
            said = self._hear(WAIT_S)
            if said is not None and said.get("id") == self._calls:
                assert "error" not in said, said
                result: dict[str, Any] = said["result"]
                return result

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Listen until it is so."""
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline_s, f"never happened: {what}"
            self._hear(0.1)

    def evaluate(self, expression: str) -> Any:
        """What a piece of JavaScript says."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def press(self, key: str) -> None:
        """A key that writes itself."""
        self.call("Input.dispatchKeyEvent", type="keyDown", text=key, key=key)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self) -> bytes:
        """PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])

    def _hear(self, timeout_s: float) -> dict[str, Any] | None:
        try:
            said: dict[str, Any] = json.loads(self._connection.recv(timeout_s))
        except TimeoutError:
            return None
        if said.get("method") == "Network.webSocketFrameReceived":
            frame = said["params"]["response"]
            binary = frame["opcode"] == 2
            self.received += base64.b64decode(frame["payloadData"]) if binary else frame["payloadData"].encode()
        return said


@contextmanager
def browser(command: str, profile: Path) -> Iterator[Page]:
    """A browser with one empty page."""
    options = ["--headless", "--no-sandbox", "--remote-debugging-port=0", "--window-size=1280,800"]
    running = subprocess.Popen(
        [command, *options, f"--user-data-dir={profile}", "about:blank"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert running.stderr is not None
        found = (re.search(r"listening on ws://([^/]+)/", line) for line in running.stderr)
        host = next(match.group(1) for match in found if match)
        (page,) = [one for one in httpx.get(f"http://{host}/json/list").json() if one["type"] == "page"]
        with connect(page["webSocketDebuggerUrl"], max_size=None) as connection:
            opened = Page(connection)
            opened.call("Page.enable")
            opened.call("Network.enable")
            yield opened
    finally:
        os.killpg(running.pid, signal.SIGKILL)  # its helpers, too, which hold its stderr
        running.communicate()
