"""The client of an agent: framed requests, multiplexed over one Unix socket.

Any number of requests may be under way; replies find their request by id. When the socket ends,
everything under way fails with SandboxLost at once, and nothing is sent twice: whether a request
took effect is then unknown, and only the caller can judge what to do about it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from rocknroll.sandbox.agent import MAX_BODY_BYTES, Frames, Refused, pack
from rocknroll.sandbox.errors import (
    ProtocolError,
    RequestTimeout,
    SandboxError,
    SandboxLost,
    SocketPathTooLong,
    StartTimeout,
    from_wire,
)

SOCKET_PATH_LIMIT_BYTES = 107
"""sockaddr_un holds 108 bytes, the closing zero included."""
CONNECT_PAUSE_S = 0.005
"""Between two tries while a starting agent has not bound its socket."""

Header = Mapping[str, Any]


def check_socket_path(path: Path) -> None:
    """Refuse a path that the kernel would refuse with an obscure message.

    Raises:
        SocketPathTooLong: it has more than 107 bytes.
    """
    length = len(str(path).encode())
    if length > SOCKET_PATH_LIMIT_BYTES:
        raise SocketPathTooLong(
            f"the socket path {path} has {length} bytes, the kernel accepts {SOCKET_PATH_LIMIT_BYTES}; "
            "set TMPDIR to a shorter folder"
        )


class _Link(asyncio.Protocol):
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._frames = Frames()

    def data_received(self, data: bytes) -> None:
        try:
            for header, body in self._frames.feed(data):
                self._channel._received(json.loads(header), body)
        except (Refused, ValueError) as error:
            self._channel._ended(f"the agent broke the protocol: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._channel._ended(f"the agent's socket closed{f': {exc}' if exc else ''}")


class Channel:
    """Open one with `Channel.connect`."""

    def __init__(self, on_event: Callable[[Header], None], on_lost: Callable[[str], None]) -> None:
        self._on_event, self._on_lost = on_event, on_lost
        self._transport: asyncio.WriteTransport | None = None
        self._waiting: dict[int, asyncio.Future[tuple[Header, bytes]]] = {}
        self._count = 0
        self._over = ""
        self.agent: Header = {}
        """What the agent said of itself: `version`, `pid`, `python`."""

    @classmethod
    async def connect(
        cls,
        path: Path,
        secret: str,
        timeout_s: float,
        on_event: Callable[[Header], None] = lambda event: None,
        on_lost: Callable[[str], None] = lambda reason: None,
    ) -> Self:
        """Connect and say hello.

        Raises:
            SocketPathTooLong: see `check_socket_path`.
            StartTimeout: nobody answered in time.
            ProtocolError: the secret is wrong or the agent is of another version.
            SandboxLost: the agent went away during the hello.
        """
        check_socket_path(path)
        channel = cls(on_event, on_lost)
        try:
            async with asyncio.timeout(timeout_s):
                await channel._dial(path)
                channel.agent, _ = await channel.request("hello", {"secret": secret})
        except TimeoutError:
            channel.close()
            raise StartTimeout(f"the agent at {path} did not answer within {timeout_s:g} s") from None
        except BaseException:
            channel.close()
            raise
        return channel

    async def _dial(self, path: Path) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._transport, _ = await loop.create_unix_connection(lambda: _Link(self), str(path))
                return
            except (FileNotFoundError, ConnectionRefusedError):
                await asyncio.sleep(CONNECT_PAUSE_S)

    async def request(
        self, op: str, header: Header | None = None, body: bytes = b"", timeout_s: float | None = None
    ) -> tuple[Header, bytes]:
        """Send one request and return its reply's header and body.

        Raises:
            SandboxLost: the channel is closed or closed before the reply.
            RequestTimeout: no reply within `timeout_s`.
            SandboxError: the error that the agent replied with.
        """
        if self._over or self._transport is None:
            raise SandboxLost(self._over or "the channel is not connected")
        if len(body) > MAX_BODY_BYTES:
            raise ProtocolError(f"a body of {len(body)} bytes is over the limit of {MAX_BODY_BYTES}")
        self._count += 1
        number = self._count
        reply: asyncio.Future[tuple[Header, bytes]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = reply
        fields = {"id": number, "op": op}
        if header:
            fields.update(header)
        self._transport.write(pack(json.dumps(fields).encode(), body))
        try:
            if timeout_s is None:
                return await reply
            async with asyncio.timeout(timeout_s):
                return await reply
        except TimeoutError:
            raise RequestTimeout(f"no answer to {op} within {timeout_s:g} s") from None
        finally:
            self._waiting.pop(number, None)

    def close(self) -> None:
        """End the connection; requests under way fail. `on_lost` is not called for it."""
        self._on_lost = lambda reason: None
        self._ended("the fleet gave this sandbox up")

    def _received(self, header: dict[str, Any], body: bytes) -> None:
        if "event" in header:
            self._on_event(header)
            return
        waiting = self._waiting.get(header.get("id", 0))
        error = header.get("error")
        if waiting is None:
            if header.get("id") == 0:
                self._ended(f"the agent refused the stream: {error}")
            return
        if waiting.done():
            return
        if error is None:
            waiting.set_result((header, body))
        else:
            waiting.set_exception(_error(error, body))

    def _ended(self, reason: str) -> None:
        if self._over:
            return
        self._over = reason
        if self._transport is not None:
            self._transport.abort()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(SandboxLost(reason))
        self._on_lost(reason)


def _error(error: Mapping[str, Any], body: bytes) -> SandboxError:
    if body:
        error = {**error, **json.loads(body)}
    return from_wire(error)
