"""The server that rollout processes are forked from."""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import pytest

from rocknroll.trainer.rollout import forking


def tell(connection: Connection) -> None:
    connection.send((os.environ.get("ROCKNROLL_MARK"), "torch" in sys.modules, signal.getsignal(signal.SIGINT)))


def told() -> tuple[str | None, bool, object]:
    ours, theirs = Pipe()
    process = forking.process(tell, theirs, name="teller")
    process.start()
    theirs.close()
    found: tuple[str | None, bool, object] = ours.recv()
    process.join()
    return found


def test_processes_know_the_environment_of_their_start_and_have_their_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROCKNROLL_MARK", raising=False)
    forking.begin()
    assert told() == (None, True, signal.SIG_IGN)
    monkeypatch.setenv("ROCKNROLL_MARK", "set when the server was there")
    assert told()[0] == "set when the server was there"
    monkeypatch.delenv("ROCKNROLL_MARK")
    assert told()[0] is None
