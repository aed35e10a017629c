"""The environment's own process inside a sandbox: a child of the agent, which relays to it.

`python -m rocknroll.envs.host FD`, or `serve(FD)` in a process forked from a preloaded one. One
request at a time comes in over the socket and is answered; an exception of the environment is an
answer too. Deadlines are the agent's: it kills this process, and nothing here has to be willing.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import traceback
from typing import Any

from rocknroll.envs.wire import NotTransportable, dumps, loads
from rocknroll.sandbox.agent.frames import PREFIX, pack

TRACEBACK_CHARS = 20_000


class Host:
    """Holds the environment and carries requests out on it."""

    def __init__(self) -> None:
        self._env: Any = None

    def handle(self, request: dict[str, Any]) -> Any:
        """The answer to one request; whatever the environment raises passes through."""
        match request["op"]:
            case "make":
                self._env = load(request["entry_point"])(**request["kwargs"])
                return {name: describe(getattr(self._env, name)) for name in ("action_space", "observation_space")}
            case "reset":
                return list(self._env.reset(seed=request["seed"], options=request["options"]))
            case "step":
                observation, reward, terminated, truncated, info = self._env.step(request["action"])
                return [observation, float(reward), bool(terminated), bool(truncated), info]
            case "close":
                self._env.close()
                return None
            case other:
                raise ValueError(f"unknown request {other!r}")


def describe(space: Any) -> dict[str, Any]:
    """A space as JSON; one that has no such form only matters to who asks for it outside."""
    from rocknroll.envs.space_wire import encode

    try:
        return encode(space)
    except NotTransportable:
        return {"kind": type(space).__name__, "text": repr(space)}


def load(entry_point: str) -> Any:
    """The object at `package.module:name`."""
    module, _, path = entry_point.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


def serve(descriptor: int) -> int:
    """Answer requests until the agent closes the socket; returns the exit code."""
    if "numpy" in sys.modules:
        # Forked siblings would otherwise draw the same "random" numbers.
        sys.modules["numpy"].random.seed()
    host = Host()
    with socket.socket(fileno=descriptor) as link:
        while (body := _receive(link)) is not None:
            try:
                status, answer = b"ok", dumps(host.handle(loads(body)))
            except BaseException as error:
                status, answer = b"error", dumps(_report(error))
            link.sendall(pack(status, answer))
    return 0


def _report(error: BaseException) -> dict[str, str]:
    text = "".join(traceback.format_exception(error))
    message = f"{type(error).__name__}: {error}"[:TRACEBACK_CHARS]
    return {"message": message, "type": type(error).__name__, "traceback": text[-TRACEBACK_CHARS:]}


def _receive(link: socket.socket) -> bytes | None:
    prefix = _exactly(link, PREFIX.size)
    if prefix is None:
        return None
    header_bytes, body_bytes = PREFIX.unpack(prefix)
    body = _exactly(link, header_bytes + body_bytes)
    return None if body is None else body[header_bytes:]


def _exactly(link: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        chunk = link.recv(size - len(data))
        if not chunk:
            return None
        data += chunk
    return bytes(data)


if __name__ == "__main__":
    os._exit(serve(int(sys.argv[1])))
