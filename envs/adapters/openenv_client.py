"""An environment behind an OpenEnv server, ours or another's, as an ordinary Gymnasium environment.

Errors that the server reports become the exceptions that they were there (`SandboxError`), never a
reward. After any of them the connection is given up, so that no late reply is taken for another's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import gymnasium

from rocknroll.envs import spaces
from rocknroll.envs.adapters.openenv_wire import failure_of
from rocknroll.sandbox.errors import ProtocolError, RequestTimeout, RuntimeUnavailable, ServiceUnreachable

try:
    from websockets.exceptions import WebSocketException
    from websockets.sync.client import ClientConnection, connect
except ModuleNotFoundError as missing:
    raise RuntimeUnavailable("the client needs the package `websockets`: pip install 'rocknroll[openenv]'") from missing

Json = Mapping[str, Any]


def _action(text: str) -> Json:
    return {"text": text}


def _text(observation: Json) -> str:
    return str(observation["text"])


class OpenEnvEnv(gymnasium.Env[str, str]):
    """Plays over a WebSocket, which is opened by the first `reset`. Close it, or use it in a `with` statement.

    Args:
        url: of the server, as `http://host:8000`.
        token: sent as `Authorization: Bearer`.
        timeout_s: for each reply.
        action, text: how another server wants actions, and what of its observations is read.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_s: float = 60.0,
        action: Callable[[str], Json] = _action,
        text: Callable[[Json], str] = _text,
    ) -> None:
        self.observation_space, self.action_space = spaces.text(), spaces.text()
        self._url = "ws" + url.removeprefix("http").rstrip("/") + "/ws"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout_s, self._encode, self._decode = timeout_s, action, text
        self._socket: ClientConnection | None = None
        self._open = ExitStack()
        """Of the connection."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode; `options` are sent as they are (our server knows `task`, `split`, `index`, `episode_id`).

        Raises:
            ServiceUnreachable: no server answers. LeaseTimeout: it has no room. SandboxError: what went wrong there.
        """
        super().reset(seed=seed)
        if self._socket is None:
            self._connect()
        data = self._ask("reset", {**(options or {}), **({} if seed is None else {"seed": seed})})
        return self._decode(data["observation"]), dict(data.get("metadata") or {})

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """One action. Of a server that only says `done`, the episode terminated; a reward of null is 0.

        Raises:
            SandboxError: what went wrong; only `reset` can go on from there.
        """
        if self._socket is None:
            raise gymnasium.error.ResetNeeded("call reset() before step(): no episode is open")
        data = self._ask("step", self._encode(action))
        seen, done = data["observation"], bool(data.get("done"))
        truncated = bool(seen.get("truncated", False))
        terminated = bool(seen.get("terminated", done and not truncated))
        info = dict(data.get("metadata") or {})
        return self._decode(seen), float(data.get("reward") or 0.0), terminated, truncated, info

    def close(self) -> None:
        """End the session. Idempotent."""
        self._socket = None
        self._open.close()

    def _connect(self) -> None:
        try:
            connecting = connect(self._url, additional_headers=self._headers, max_size=None, proxy=None)
            self._socket = self._open.enter_context(connecting)
        except (OSError, WebSocketException) as error:
            raise ServiceUnreachable(f"no OpenEnv server answers at {self._url}: {error}") from error

    def _ask(self, kind: str, data: Json) -> Json:
        """The `data` of the reply."""
        assert self._socket is not None
        try:
            self._socket.send(json.dumps({"type": kind, "data": data}))
            reply = json.loads(self._socket.recv(self._timeout_s))
        except TimeoutError:
            self.close()
            raise RequestTimeout(f"{self._url} did not answer within {self._timeout_s:g} s") from None
        except (OSError, WebSocketException) as error:
            self.close()
            raise ServiceUnreachable(f"the connection to {self._url} ended: {error}") from error
        except ValueError as error:
            self.close()
            raise ProtocolError(f"{self._url} answered with something else than JSON: {error}") from error
        if reply.get("type") == "error":
            self.close()
            raise failure_of(reply.get("data", {}))
        answered: Json = reply.get("data", {})
        return answered
