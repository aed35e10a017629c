"""The dashboard in a browser: everything for who has the token, and nothing at all for anybody else."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
from browsing import browser, installed
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from rocknroll.dashboard import web
from rocknroll.sandbox.errors import AddressUnavailable, RuntimeUnavailable

ROCK = [sys.executable, "-m", "rocknroll.sandbox.cli"]
ARTEFACTS = Path(__file__).parents[2] / "build"
WAIT_S = 120.0
STATIC = "/static/js/textual.js"
HELP = b"Keys"


@dataclass(frozen=True)
class Served:
    url: str
    """With the token."""
    process: subprocess.Popen[str]

    @property
    def origin(self) -> str:
        """`host:port`."""
        return self.url.removeprefix("http://").partition("/")[0]

    @property
    def token(self) -> str:
        return self.url.partition("token=")[2]

    @property
    def cookie(self) -> dict[str, str]:
        return {"Cookie": f"rock-{self.origin.partition(':')[2]}={self.token}"}

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(f"http://{self.origin}{path}", headers=headers, timeout=WAIT_S)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    process = subprocess.Popen([*ROCK, "demo", "--web"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], WAIT_S)[0], "no URL was printed"
    yield Served(process.stdout.readline().strip(), process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 0


@pytest.mark.parametrize("path", ["/", STATIC, "/static/", "/ws", "/download/x", "/nowhere"])
@pytest.mark.parametrize("token", ["", "?token=", "?token=wrong"], ids=["none", "empty", "wrong"])
def test_without_the_token_nothing_is_served(served: Served, path: str, token: str) -> None:
    answer = served.get(path + token)
    assert answer.status_code == 401 and "holds the token" in answer.text
    assert "set-cookie" not in answer.headers


def test_a_wrong_cookie_is_no_token(served: Served) -> None:
    name = next(iter(served.cookie.values())).partition("=")[0]
    assert served.get("/", Cookie=f"{name}=wrong").status_code == 401


def test_the_token_is_given_once_and_goes_out_of_the_address(served: Served) -> None:
    with httpx.Client() as client:
        answer = client.get(served.url)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert "HttpOnly" in answer.headers["set-cookie"]
        page = client.get(f"http://{served.origin}/")
        assert page.status_code == 200 and f"ws://{served.origin}/ws" in page.text and served.token not in page.text
        assert client.get(f"http://{served.origin}{STATIC}").status_code == 200
        assert page.headers["referrer-policy"] == "no-referrer"
        assert page.headers["content-security-policy"].startswith("default-src 'none'")


@pytest.mark.parametrize("host", ["evil.example", "localhost", "evil.example:{port}", "localhost:{port}"])
def test_a_name_that_only_resolves_to_this_address_is_refused(served: Served, host: str) -> None:
    answer = served.get("/", Host=host.format(port=served.origin.partition(":")[2]), **served.cookie)
    assert answer.status_code == 421


def test_pages_of_other_sites_are_refused_with_the_token_too(served: Served) -> None:
    assert served.get("/", Origin="http://evil.example", **served.cookie).status_code == 403
    with (
        pytest.raises(InvalidStatus, match="403"),
        connect(f"ws://{served.origin}/ws", origin="http://evil.example", additional_headers=served.cookie),
    ):
        pass


def test_the_websocket_without_the_token_is_refused(served: Served) -> None:
    with (
        pytest.raises(InvalidStatus, match="401"),
        connect(f"ws://{served.origin}/ws", origin=f"http://{served.origin}"),
    ):
        pass
    assert not psutil.Process(served.process.pid).children(), "an application was started for it"


def test_with_the_token_the_application_answers_keys_and_ends_with_its_page(served: Served) -> None:
    heard = b""
    with connect(
        f"ws://{served.origin}/ws?width=100&height=30",
        origin=f"http://{served.origin}",
        additional_headers=served.cookie,
        max_size=None,
    ) as page:

        def until(words: bytes) -> None:
            nonlocal heard
            deadline_s = time.monotonic() + WAIT_S
            while words not in heard:
                said = page.recv(deadline_s - time.monotonic())
                heard += said if isinstance(said, bytes) else said.encode()

        until(b"QUARANTINED")
        heard = b""
        page.send(json.dumps(["stdin", "?"]))
        until(HELP)
    until_gone = time.monotonic() + WAIT_S
    while psutil.Process(served.process.pid).children():
        assert time.monotonic() < until_gone, "the application outlives its page"
        time.sleep(0.02)


def test_a_port_that_is_taken_is_an_error(served: Served) -> None:
    with pytest.raises(AddressUnavailable, match="Choose another port with `--port`"):
        web.serve(["demo"], int(served.origin.partition(":")[2]))


def test_without_textual_serve_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "find_spec", lambda name: None)
    with pytest.raises(RuntimeUnavailable, match=r"pip install 'rocknroll\[web\]'"):
        web.serve(["demo"])


def test_a_browser_shows_it_and_a_key_works(served: Served, tmp_path: Path) -> None:
    command = installed()
    if command is None:
        if os.environ.get("ROCKNROLL_REQUIRE_BROWSER"):
            pytest.fail("no Chromium is installed; .ci/install-browser does it")
        pytest.skip("no Chromium is installed; .ci/install-browser does it")
    with browser(command, tmp_path) as page:
        blank = page.screenshot()
        page.call("Page.navigate", url=f"http://{served.origin}/")
        page.until(lambda: "holds the token" in str(page.evaluate("document.body?.innerText")), "it is refused")
        page.call("Page.navigate", url=served.url)
        page.until(lambda: b"QUARANTINED" in page.received, "the application draws itself")
        page.until(lambda: bool(page.evaluate("document.body.classList.contains('-first-byte')")), "it is shown")
        assert page.evaluate("location.href") == f"http://{served.origin}/"
        page.received = b""
        page.press("?")
        page.until(lambda: HELP in page.received, "the key opens the help, without a click before it")
        ARTEFACTS.mkdir(exist_ok=True)
        seen = page.screenshot()
        (ARTEFACTS / "dashboard-in-a-browser.png").write_bytes(seen)
        assert len(seen) > 3 * len(blank)
