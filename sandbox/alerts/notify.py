"""Tells alerts to a webhook and a command, from a thread of its own, so that nobody waits for either.

A channel that fails is logged once, and once more when it works again; a webhook's URL is never logged, for it is
often the secret that lets one write there.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import Final

import httpx
import tenacity

from rocknroll.sandbox.alerts.config import AlertCommand, Told, Webhook
from rocknroll.sandbox.alerts.rule import Alert
from rocknroll.sandbox.errors import SpecInvalid

QUEUE_LENGTH = 1_000
"""Alerts that wait to be told; what comes on top while a channel hangs is not told to it."""
FIRST_RETRY_S = 0.5
LONGEST_RETRY_S = 30.0
CLOSE_S = 10.0
"""For what still waits to be told when its manager ends."""
WORDS_BYTES = 300
"""Of what a failing command said last."""

_log = logging.getLogger(__name__)
_END: Final = None


class TellFailed(Exception):
    """An alert did not get through; the text says why, without the URL."""


class Busy(TellFailed):
    """The other side may take it later."""


class Notifier:
    """`origin`: who tells, added to every alert. Without a channel in `told` there is no thread and nothing happens.

    Raises:
        SpecInvalid: the environment lacks the variable that is to hold the webhook's URL, or holds none there.
    """

    def __init__(self, told: Told, origin: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> None:
        self._origin = dict(origin)
        self._stopping = threading.Event()
        self._channels: dict[str, Callable[[bytes], None]] = {}
        if told.webhook is not None:
            hook = Poster(told.webhook, url_of(told.webhook, environment), self._stopping)
            self._channels["webhook"] = hook.post
        if told.command is not None:
            command = told.command
            self._channels["command"] = lambda body: run(command, body)
        self._failing: set[str] = set()
        self._queue: queue.Queue[bytes | None] = queue.Queue(QUEUE_LENGTH)
        self._thread = threading.Thread(target=self._work, name="alerts", daemon=True)
        if self._channels:
            self._thread.start()

    def tell(self, alert: Alert) -> None:
        """Hand an alert over; returns at once."""
        if not self._channels:
            return
        happened = "raised" if alert.resolved is None else "resolved"
        try:
            self._queue.put_nowait(json.dumps({"event": happened, **alert.to_json(), **self._origin}).encode())
        except queue.Full:
            self._failed("webhook or command", "it hangs, and too many alerts wait for it already")

    def close(self) -> None:
        """Tell what waits, for a moment, then end. Idempotent."""
        if not self._thread.is_alive():
            return
        try:
            self._queue.put_nowait(_END)
            self._thread.join(CLOSE_S)
        except queue.Full:
            _log.warning("alerts that waited to be told are lost: a webhook or command hung")
        self._stopping.set()

    def _work(self) -> None:
        while (body := self._queue.get()) is not _END:
            for name, tell in self._channels.items():
                if self._stopping.is_set():
                    return
                try:
                    tell(body)
                except TellFailed as error:
                    self._failed(name, str(error))
                else:
                    self._succeeded(name)

    def _failed(self, name: str, why: str) -> None:
        if name not in self._failing:
            self._failing.add(name)
            _log.error("alerts do not reach the %s: %s. They are in the record; this is said once.", name, why)

    def _succeeded(self, name: str) -> None:
        if name in self._failing:
            self._failing.remove(name)
            _log.warning("alerts reach the %s again", name)


def url_of(webhook: Webhook, environment: Mapping[str, str]) -> str:
    """The webhook's URL.

    Raises:
        SpecInvalid: the variable that is to hold it is not set, or holds no URL.
    """
    if webhook.url is not None:
        return webhook.url
    assert webhook.url_variable is not None
    url = environment.get(webhook.url_variable, "")
    if not url.startswith(("http://", "https://")):
        found = "is not set" if not url else "holds no http(s) URL"
        raise SpecInvalid(
            f"`alerts.webhook.url_variable` names ${webhook.url_variable}, which {found}: set it to the webhook's URL,"
            " or take the webhook out"
        )
    return url


class Poster:
    """POSTs alerts, again after a while where that may help; `stopping` ends the wait."""

    def __init__(self, webhook: Webhook, url: str, stopping: threading.Event) -> None:
        self._webhook, self._url, self._host, self._stopping = webhook, url, httpx.URL(url).host, stopping

    def post(self, body: bytes) -> None:
        """Raises: TellFailed; it did not get through."""
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(self._webhook.tries) | tenacity.stop_when_event_set(self._stopping),
            wait=tenacity.wait_random_exponential(FIRST_RETRY_S, LONGEST_RETRY_S),
            retry=tenacity.retry_if_exception_type(Busy),
            sleep=tenacity.sleep_using_event(self._stopping),
            reraise=True,
        )
        retrying(self._post_once, body)

    def _post_once(self, body: bytes) -> None:
        try:
            answer = self._client.post(self._url, content=body, headers={"Content-Type": "application/json"})
        except httpx.TransportError as error:
            raise Busy(f"{self._host} was not reached ({type(error).__name__})") from error
        if answer.status_code == httpx.codes.TOO_MANY_REQUESTS or answer.is_server_error:
            raise Busy(f"{self._host} answered {answer.status_code}")
        if not answer.is_success:
            raise TellFailed(f"{self._host} answered {answer.status_code}")

    @functools.cached_property
    def _client(self) -> httpx.Client:
        """Made once, at the first alert: reading the certificates of the world takes a second on a busy machine."""
        return httpx.Client(timeout=self._webhook.timeout_s)


def run(command: AlertCommand, body: bytes) -> None:
    """Run a program with an alert on its standard input; what it started is killed with it at its deadline.

    Raises:
        TellFailed: it could not be started, took too long, or ended with another code than 0.
    """
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(
                command.argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
            )
        except OSError as error:
            raise TellFailed(f"{command.argv[0]} cannot be started: {error.strerror}") from error
        try:
            process.communicate(body, timeout=command.timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise TellFailed(f"{command.argv[0]} took longer than {command.timeout_s:g} s and was killed") from None
        if process.returncode:
            said.seek(0)
            words = said.read()[-WORDS_BYTES:].decode(errors="replace").strip()
            raise TellFailed(f"{command.argv[0]} ended with code {process.returncode}: {words or 'it said nothing'}")
