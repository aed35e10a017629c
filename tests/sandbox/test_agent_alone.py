"""The agent as a file of its own, under every Python it promises to run on that this machine has."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocknroll.sandbox import agent
from rocknroll.sandbox.agent import Frames, pack


def interpreters() -> list[str]:
    """This one, and older and newer ones from PATH or pyenv."""
    roots = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep)]
    roots += sorted((Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions").glob("3.*/bin"))
    found = {}
    for minor in (8, 9, 13):
        for root in roots:
            candidate = root / f"python3.{minor}"
            if candidate.is_file() and "shims" not in candidate.parts:
                found[minor] = str(candidate)
    return [sys.executable, *found.values()]


class Client:
    """A blocking client without any of the fleet's code."""

    def __init__(self, path: Path) -> None:
        self._link = socket.socket(socket.AF_UNIX)
        self._link.connect(str(path))
        self._link.settimeout(120)
        self._frames = Frames()

    def ask(self, body: bytes = b"", **header: Any) -> tuple[dict[str, Any], bytes]:
        self._link.sendall(pack(json.dumps({"id": 1, **header}).encode(), body))
        while True:
            for reply, data in self._frames.feed(self._link.recv(1 << 16)):
                return json.loads(reply), data

    def close(self) -> None:
        self._link.close()


@pytest.fixture(params=interpreters(), ids=lambda path: Path(path).name)
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    folder = Path(tempfile.mkdtemp(prefix="t-"))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "s"))
    listener.listen(1)
    reader, writer = os.pipe()
    variables = {"PATH": os.environ["PATH"]}
    config = {"workdir": str(folder), "variables": variables, "token": 0, "secret": "s", "listener": listener.fileno()}
    os.write(writer, json.dumps(config).encode())
    os.close(writer)
    command = [request.param, "-I", "-S", agent.__file__, str(reader)]
    process = subprocess.Popen(command, pass_fds=[reader, listener.fileno()])
    client = Client(folder / "s")
    yield client
    client.close()
    process.kill()
    process.wait()
    os.close(reader)
    listener.close()
    shutil.rmtree(folder)


def test_the_agent_needs_nothing_but_the_standard_library(client: Client) -> None:
    assert "say hello" in client.ask(op="ping")[0]["error"]["message"]
    assert client.ask(op="hello", secret="s")[0]["version"] == agent.VERSION
    done, output = client.ask(b"typed", op="exec", token=5, argv=["sh", "-c", "cat; exit 4"], timeout_s=60)
    assert (done["exit_code"], output) == (4, b"typed")
    assert client.ask(op="exec", token=5, argv=["sleep", "1000"], timeout_s=0.2)[0]["timed_out"]
    assert client.ask(op="stat", token=4, path=".")[0]["error"]["kind"] == "stale_token"
    assert client.ask(b"data", op="write", token=5, path="a/b")[0]["size_bytes"] == 4
    assert client.ask(op="read", token=5, path="a/b", offset=1)[1] == b"ata"
    assert client.ask(op="nonsense", token=5)[0]["error"]["kind"] == "protocol_error"
    assert client.ask(op="exec", token=5)[0]["error"]["kind"] == "protocol_error"
