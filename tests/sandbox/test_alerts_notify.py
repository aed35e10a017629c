"""Alerts reach a webhook and a command, or it is said once that they do not; nobody waits for either."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hooks import Hook, listening
from playthings import until

from rocknroll.sandbox.alerts import notify
from rocknroll.sandbox.alerts.config import AlertCommand, Told, Webhook
from rocknroll.sandbox.alerts.notify import Notifier, Poster, TellFailed, run
from rocknroll.sandbox.alerts.rule import Alert
from rocknroll.sandbox.errors import SpecInvalid

ALERT = Alert("disk", "the state folder", "critical", 1.0, "It is full.")
ORIGIN = {"from": "rock", "host": "here"}


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    monkeypatch.setattr(notify, "FIRST_RETRY_S", 0.001)
    with listening() as hook:
        yield hook


def test_what_is_raised_and_resolved_is_posted_with_who_says_so(hook: Hook) -> None:
    notifier = Notifier(Told(webhook=Webhook(url_variable="HOOK")), ORIGIN, {"HOOK": hook.url})
    notifier.tell(ALERT)
    notifier.tell(Alert.from_json({**ALERT.to_json(), "resolved": 9.0}))
    until(lambda: len(hook.posted) == 2, "both are posted")
    notifier.close()
    first, second = hook.posted
    assert first == {"event": "raised", **ALERT.to_json(), **ORIGIN}
    assert (second["event"], second["resolved"]) == ("resolved", 9.0)


def test_a_webhook_that_is_busy_is_asked_again(hook: Hook) -> None:
    hook.answers = [500, 429, 204]
    Poster(Webhook(url=hook.url), hook.url, threading.Event()).post(b"{}")
    assert len(hook.posted) == 3


@pytest.mark.parametrize(("answers", "tries"), [([503] * 9, 4), ([404] * 9, 1)], ids=["unavailable", "refused"])
def test_a_webhook_that_does_not_take_it_is_given_up(hook: Hook, answers: list[int], tries: int) -> None:
    hook.answers = list(answers)
    with pytest.raises(TellFailed, match=f"127.0.0.1 answered {answers[0]}"):
        Poster(Webhook(url=hook.url), hook.url, threading.Event()).post(b"{}")
    assert len(hook.posted) == tries


def test_a_failing_webhook_is_logged_once_without_its_url_and_once_when_it_works_again(
    hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    hook.answers = [404, 404, 204]
    notifier = Notifier(Told(webhook=Webhook(url=hook.url)), ORIGIN)
    for _ in range(3):
        notifier.tell(ALERT)
    until(lambda: len(caplog.records) == 2, "it is said")
    notifier.close()
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.WARNING]
    assert "do not reach the webhook: 127.0.0.1 answered 404" in caplog.text and "secret" not in caplog.text


def test_nobody_waits_for_a_webhook_that_hangs(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "QUEUE_LENGTH", 2)
    monkeypatch.setattr(notify, "CLOSE_S", 0.0)
    hook.open.clear()
    notifier = Notifier(Told(webhook=Webhook(url=hook.url)), ORIGIN)
    for _ in range(20):
        notifier.tell(ALERT)
    notifier.close()
    assert hook.posted == [], "all of this was done before it answered anyone"


def test_a_webhook_whose_url_is_not_there_is_an_error_before_anything_starts() -> None:
    told = Told(webhook=Webhook(url_variable="HOOK"))
    with pytest.raises(SpecInvalid, match=r"names \$HOOK, which is not set"):
        Notifier(told, ORIGIN, {})
    with pytest.raises(SpecInvalid, match=r"holds no http\(s\) URL"):
        Notifier(told, ORIGIN, {"HOOK": "file:///etc"})


def test_a_command_gets_the_alert_on_its_standard_input_and_no_shell_reads_its_words(tmp_path: Path) -> None:
    program = f"import sys; open({str(tmp_path / 'got')!r}, 'w').write(sys.argv[1] + sys.stdin.read())"
    notifier = Notifier(Told(command=AlertCommand(argv=("python3", "-c", program, "$HOME; "))), ORIGIN)
    notifier.tell(ALERT)
    until(lambda: (tmp_path / "got").exists() and (tmp_path / "got").read_text().endswith("}"), "it is written")
    notifier.close()
    words, _, body = (tmp_path / "got").read_text().partition("{")
    assert words == "$HOME; " and json.loads("{" + body)["rule"] == "disk"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("/nowhere/at/all",), "cannot be started: No such file"),
        (("sh", "-c", "echo no such channel >&2; exit 3"), "ended with code 3: no such channel"),
    ],
)
def test_a_command_that_fails_says_why(argv: tuple[str, ...], says: str) -> None:
    with pytest.raises(TellFailed, match=says):
        run(AlertCommand(argv=argv), b"{}")


def test_a_command_that_takes_too_long_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! > {tmp_path / 'pid'}; wait"
    command = AlertCommand(argv=("sh", "-c", script), timeout_s=0.5)
    with pytest.raises(TellFailed, match=r"took longer than 0\.5 s and was killed"):
        run(command, b"{}")
    child = int((tmp_path / "pid").read_text())
    until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie", "the child ends")
