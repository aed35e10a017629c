"""An agent without a fleet, as its own process, and a blocking client without any of the fleet's code."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rocknroll.sandbox import agent
from rocknroll.sandbox.agent.frames import Frames, pack

SECRET = "s"
FOLDER = str(Path(agent.__file__).parent)


def proof(role: bytes, client_nonce: str, agent_nonce: str, secret: str = SECRET) -> str:
    """By the standard library's HMAC."""
    message = b"|".join((role, client_nonce.encode(), agent_nonce.encode()))
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()


class Client:
    """Asks one thing at a time; `greet=False` leaves the hello to the test."""

    def __init__(self, path: Path, greet: bool = True) -> None:
        self.link = socket.socket(socket.AF_UNIX)
        self.link.connect(str(path))
        self.link.settimeout(120)
        self._frames, self._early = Frames(), []
        self._count = 0
        if greet:
            self.greet()

    def greet(self) -> dict[str, Any]:
        hello, _ = self.ask(op="hello", nonce="mine")
        assert hello["proof"] == proof(b"agent", "mine", hello["nonce"])
        about, _ = self.ask(op="prove", proof=proof(b"client", "mine", hello["nonce"]))
        return about

    def tell(self, body: bytes = b"", **header: Any) -> int:
        self._count += 1
        self.link.sendall(pack(json.dumps({"id": self._count, **header}).encode(), body))
        return self._count

    def hear(self) -> tuple[dict[str, Any], bytes]:
        while not self._early:
            data = self.link.recv(1 << 16)
            if not data:
                raise EOFError("the agent closed the connection")
            self._early += self._frames.feed(data)
        header, body = self._early.pop(0)
        return json.loads(header), body

    def ask(self, body: bytes = b"", **header: Any) -> tuple[dict[str, Any], bytes]:
        number = self.tell(body, **header)
        while True:
            reply, data = self.hear()
            if reply.get("id") in (number, 0) and "going" not in reply:
                return reply, data

    def do(self, op: str, body: bytes = b"", **fields: Any) -> tuple[dict[str, Any], bytes]:
        """Under token 1, with time enough."""
        return self.ask(body, **{"op": op, "token": 1, "timeout_s": 60, **fields})

    def close(self) -> None:
        self.link.close()


@contextlib.contextmanager
def running_agent(
    folder: Path, python: str = sys.executable, wrapper: tuple[str, ...] = (), **config: Any
) -> Iterator[Path]:
    """The path of its socket. Its working directory is `folder/work`; `wrapper` is a command that starts commands."""
    (folder / "work").mkdir(exist_ok=True)
    path = folder / "s"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(32)
    reader, writer = os.pipe()
    full = {"workdir": str(folder / "work"), "variables": {"PATH": os.environ["PATH"]}, "token": 0, "secret": SECRET}
    os.write(writer, json.dumps({**full, "listener": listener.fileno(), **config}).encode())
    os.close(writer)
    command = [*wrapper, python, "-I", "-S", FOLDER, str(reader)]
    process = subprocess.Popen(command, pass_fds=[reader, listener.fileno()], cwd="/")
    os.close(reader)
    listener.close()
    try:
        yield path
    finally:
        process.kill()
        process.wait()
