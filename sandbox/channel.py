"""The client of an agent: framed requests, multiplexed over one stream, as a rule a Unix socket.

Any number of requests may be under way; replies find their request by id. When the socket ends,
everything under way fails with SandboxLost at once, and nothing is sent twice: whether a request
took effect is then unknown, and only the caller can judge what to do about it. A request that its
caller no longer waits for is cancelled in the agent too: what it started there ends.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from rocknroll.sandbox.agent import proof
from rocknroll.sandbox.agent.commands import WINDOW_BYTES
from rocknroll.sandbox.agent.connection import VERSION
from rocknroll.sandbox.agent.frames import MAX_BODY_BYTES, Frames, Refused, pack
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


class Route(Protocol):
    """The way to an agent that is not on this machine."""

    async def dial(self, factory: Callable[[], asyncio.Protocol]) -> asyncio.WriteTransport:
        """Connect a protocol to the agent.

        Raises:
            SandboxLost: the way is gone for good.
            OSError: it cannot be connected to (yet).
        """

    async def account(self, end: OSError | None) -> SandboxLost:
        """What it means that a connection ended, with an error or (None) as by the other side."""


class _Link(asyncio.Protocol):
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._frames = Frames()

    def data_received(self, data: bytes) -> None:
        try:
            for header, body in self._frames.feed(data):
                self._channel._received(json.loads(header), body)
        except (Refused, ValueError) as error:
            self._channel.fail(SandboxLost(f"the agent broke the protocol: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._channel._disconnected(exc)


class Exchange:
    """A request that goes on: output comes in pieces, input is sent in pieces, then there is a reply.

    The agent sends no more than was asked for with `credit`, and takes no more than it gave credit for.
    """

    def __init__(self, channel: Channel, number: int, token: Any) -> None:
        self._channel, self._number, self._token = channel, number, token
        self._pieces: deque[tuple[str, bytes]] = deque()
        self._changed = asyncio.Event()
        self._room = WINDOW_BYTES
        self.reply: asyncio.Future[tuple[Header, bytes]] = asyncio.get_running_loop().create_future()
        self.reply.add_done_callback(self._over)

    def received(self, header: Header, body: bytes) -> None:
        """A frame on the way."""
        if "chunk" in header:
            self._pieces.append((str(header["chunk"]), body))
        else:
            self._room += int(header.get("credit", 0))
        self._changed.set()

    async def piece(self) -> tuple[str, bytes] | None:
        """The next piece of output with the name of its stream; None: there is no more, see `reply`.

        Raises:
            SandboxLost: the channel closed.
        """
        while not self._pieces:
            if self.reply.done():
                self.reply.result()
                return None
            self._changed.clear()
            await self._changed.wait()
        name, data = self._pieces.popleft()
        self._tell("credit", {"count": len(data)})
        return name, data

    async def send(self, data: bytes, end: bool = False) -> None:
        """Input, as fast as the other end takes it; what comes after its end is dropped."""
        view = memoryview(data)
        while True:
            while view and self._room <= 0 and not self.reply.done():
                self._changed.clear()
                await self._changed.wait()
            if self.reply.done():
                return
            piece, view = view[: self._room], view[self._room :]
            self._room -= len(piece)
            self._tell("more", {"end": end and not view}, bytes(piece))
            if not view:
                return

    def cancel(self) -> None:
        """End what it started; the reply comes when that is over."""
        self._tell("cancel", {})

    def _tell(self, op: str, header: Header, body: bytes = b"") -> None:
        if not self.reply.done():
            self._channel.tell(op, {"to": self._number, "token": self._token, **header}, body)

    def _over(self, reply: asyncio.Future[tuple[Header, bytes]]) -> None:
        self._changed.set()
        if not reply.cancelled():
            reply.exception()  # Seen by whoever asks for a piece; nobody has to.


class Channel:
    """Open one with `Channel.connect`."""

    def __init__(
        self, way: Path | Route, on_event: Callable[[Header], None], on_lost: Callable[[SandboxLost], None]
    ) -> None:
        self._way, self._on_event, self._on_lost = way, on_event, on_lost
        self._transport: asyncio.WriteTransport | None = None
        self._waiting: dict[int, asyncio.Future[tuple[Header, bytes]]] = {}
        self._exchanges: dict[int, Exchange] = {}
        self._count = 0
        self._over: SandboxLost | None = None
        self._accounting: asyncio.Task[None] | None = None
        self.agent: Header = {}
        """What the agent said of itself: `version`, `pid`, `python`."""

    @classmethod
    async def connect(
        cls,
        way: Path | Route,
        secret: str,
        timeout_s: float,
        on_event: Callable[[Header], None] = lambda event: None,
        on_lost: Callable[[SandboxLost], None] = lambda why: None,
    ) -> Self:
        """Connect to a socket of this machine, or by a route; both sides prove that they know the secret, without
        saying it.

        Raises:
            SocketPathTooLong: see `check_socket_path`.
            StartTimeout: nobody answered in time.
            ProtocolError: either side could not prove it, or the agent is of another version.
            SandboxLost: the agent went away during the hello.
        """
        if isinstance(way, Path):
            check_socket_path(way)
        channel = cls(way, on_event, on_lost)
        try:
            async with asyncio.timeout(timeout_s):
                await channel._dial()
                await channel._greet(secret)
        except TimeoutError:
            channel.close()
            raise StartTimeout(f"the agent at {way} did not answer within {timeout_s:g} s") from None
        except BaseException:
            channel.close()
            raise
        return channel

    async def _dial(self) -> None:
        if not isinstance(self._way, Path):
            self._transport = await self._way.dial(lambda: _Link(self))
            return
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._transport, _ = await loop.create_unix_connection(lambda: _Link(self), str(self._way))
                return
            except (FileNotFoundError, ConnectionRefusedError):
                await asyncio.sleep(CONNECT_PAUSE_S)

    async def _greet(self, secret: str) -> None:
        mine = proof.nonce()
        answer, _ = await self.request("hello", {"nonce": mine})
        if answer.get("version") != VERSION:
            raise ProtocolError(f"the agent speaks version {answer.get('version')}, this fleet {VERSION}")
        nonces = (mine, str(answer.get("nonce")))
        if not proof.proves(answer.get("proof"), secret, proof.AGENT, *nonces):
            raise ProtocolError("who answers at the agent's socket does not know the secret; it is not our agent")
        self.agent, _ = await self.request("prove", {"proof": proof.prove(secret, proof.CLIENT, *nonces)})

    async def request(
        self, op: str, header: Header | None = None, body: bytes = b"", timeout_s: float | None = None
    ) -> tuple[Header, bytes]:
        """Send one request and return its reply's header and body.

        Raises:
            SandboxLost: the channel is closed or closed before the reply.
            RequestTimeout: no reply within `timeout_s`.
            SandboxError: the error that the agent replied with.
        """
        number = self._send(op, header, body)
        reply: asyncio.Future[tuple[Header, bytes]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = reply
        try:
            if timeout_s is None:
                return await reply
            async with asyncio.timeout(timeout_s):
                return await reply
        except TimeoutError:
            self._cancel(number, header)
            raise RequestTimeout(f"no answer to {op} within {timeout_s:g} s") from None
        except asyncio.CancelledError:
            self._cancel(number, header)
            raise
        finally:
            self._waiting.pop(number, None)

    def exchange(self, op: str, header: Header, body: bytes = b"") -> Exchange:
        """Send a request that goes on.

        Raises:
            SandboxLost: the channel is closed.
        """
        number = self._send(op, header, body)
        exchange = Exchange(self, number, header.get("token"))
        self._waiting[number], self._exchanges[number] = exchange.reply, exchange
        exchange.reply.add_done_callback(lambda reply: self._forget(number))
        return exchange

    def tell(self, op: str, header: Header, body: bytes = b"") -> None:
        """Send something that has no answer unless it is wrong."""
        if self._over is None:
            self._send(op, header, body)

    def _send(self, op: str, header: Header | None, body: bytes) -> int:
        if self._over is not None:
            raise _again(self._over)
        if self._transport is None:
            raise SandboxLost("the channel is not connected")
        if len(body) > MAX_BODY_BYTES:
            raise ProtocolError(f"a body of {len(body)} bytes is over the limit of {MAX_BODY_BYTES}")
        self._count += 1
        fields = {"id": self._count, "op": op}
        if header:
            fields.update(header)
        self._transport.write(pack(json.dumps(fields).encode(), body))
        return self._count

    def _cancel(self, number: int, header: Header | None) -> None:
        if header and "token" in header:
            self.tell("cancel", {"to": number, "token": header["token"]})

    def _forget(self, number: int) -> None:
        self._waiting.pop(number, None)
        self._exchanges.pop(number, None)

    def close(self) -> None:
        """End the connection; requests under way fail. `on_lost` is not called for it."""
        self._on_lost = lambda why: None
        self.fail(SandboxLost("the fleet gave this sandbox up"))

    def fail(self, why: SandboxLost) -> None:
        """End the connection because the sandbox is gone; requests under way fail with `why`. Idempotent."""
        if self._over is not None:
            return
        self._over = why
        if self._transport is not None:
            self._transport.abort()
        for waiting in list(self._waiting.values()):
            if not waiting.done():
                waiting.set_exception(_again(why))
        self._on_lost(why)

    def _disconnected(self, end: Exception | None) -> None:
        if isinstance(self._way, Path):
            self.fail(SandboxLost(f"the agent's socket closed{f': {end}' if end else ''}"))
        elif self._over is None:
            self._accounting = asyncio.create_task(self._account(self._way, end if isinstance(end, OSError) else None))

    async def _account(self, route: Route, end: OSError | None) -> None:
        self.fail(await route.account(end))

    def _received(self, header: dict[str, Any], body: bytes) -> None:
        if "event" in header:
            self._on_event(header)
            return
        if "going" in header:
            exchange = self._exchanges.get(header["id"])
            if exchange is not None:
                exchange.received(header, body)
            return
        waiting = self._waiting.get(header.get("id", 0))
        error = header.get("error")
        if waiting is None:
            if header.get("id") == 0:
                self.fail(SandboxLost(f"the agent refused the stream: {error}"))
            return
        if waiting.done():
            return
        if error is None:
            waiting.set_result((header, body))
        else:
            waiting.set_exception(_error(error, body))


def _again(why: SandboxLost) -> SandboxLost:
    """The same for another caller: one exception object cannot have the tracebacks of several."""
    return type(why)(*why.args)


def _error(error: Mapping[str, Any], body: bytes) -> SandboxError:
    if body:
        error = {**error, **json.loads(body)}
    return from_wire(error)
