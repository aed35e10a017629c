"""Carries connections over TCP to the agents' Unix sockets of this machine, without looking into them.

A connection begins with a key. Each agent has one, drawn at random and told to the fleet alone, and asks for the proof
of its secret besides; the tether's key leads nowhere: that connection ends with this process, and so says that
it did. Nothing is carried once `in_force` says no, not even what was on its way.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path

KEY_CHARS = 32
HELLO_TIMEOUT_S = 10.0
"""Who connects and says nothing is not waited for longer."""
CONNECT_PAUSE_S = 0.005
"""Between two tries while a starting agent has not bound its socket."""


class Relay:
    """One per node. Open with `listen`."""

    def __init__(self, in_force: Callable[[], bool]) -> None:
        self.in_force = in_force
        self.tether = secrets.token_hex(KEY_CHARS // 2)
        self.ends: set[End] = set()
        self._sockets: dict[str, Path] = {}
        self._server: asyncio.Server | None = None

    async def listen(self, host: str) -> tuple[str, int]:
        """Take connections at an address of this machine, on a port of the kernel's choice; returns both.

        Raises:
            OSError: the address is not this machine's.
        """
        self._server = await asyncio.get_running_loop().create_server(lambda: _Caller(self), host, 0)
        bound: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        return bound

    def admit(self, socket: Path) -> str:
        """The key that leads to this socket from now on."""
        key = secrets.token_hex(KEY_CHARS // 2)
        self._sockets[key] = socket
        return key

    def dismiss(self, key: str) -> None:
        """The key leads nowhere any more, and what it connected is cut."""
        self._sockets.pop(key, None)
        for end in [end for end in self.ends if end.key == key]:
            end.cut()

    def socket(self, key: str) -> Path | None:
        """Where a key leads."""
        return self._sockets.get(key)

    def close(self) -> None:
        """Cut everything, the tether too."""
        self._sockets.clear()
        if self._server is not None:
            self._server.close()
        for end in list(self.ends):
            end.cut()


class End(asyncio.Protocol):
    """One of the two ends that a relay ties together; each reads no faster than the other writes."""

    def __init__(self, relay: Relay, key: str = "") -> None:
        self.relay, self.key = relay, key
        self.other: End | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.relay.ends.add(self)

    def data_received(self, data: bytes) -> None:
        if not self.relay.in_force():
            self.relay.close()
        elif self.other is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.relay.ends.discard(self)
        if self.other is not None:
            self.other.transport.close()  # what has been written still arrives

    def cut(self) -> None:
        """At once, whatever is on its way."""
        self.transport.abort()


class _Caller(End):
    """The end of who connected: a key first, then what is carried."""

    def __init__(self, relay: Relay) -> None:
        super().__init__(relay)
        self._begun = b""
        self._joining: asyncio.Task[None] | None = None
        self._timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._timeout = asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, self.cut)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            super().data_received(data)
            return
        self._begun += data
        if len(self._begun) < KEY_CHARS or self._joining is not None:
            return
        if self._timeout is not None:
            self._timeout.cancel()
        key = self._begun[:KEY_CHARS].decode("ascii", "replace")
        if secrets.compare_digest(key.encode(), self.relay.tether.encode()):
            self.transport.pause_reading()  # there is nothing to be said on it
        elif self.relay.socket(key) is None:
            self.cut()
        else:
            self.key = key
            self.transport.pause_reading()
            self._joining = asyncio.create_task(self._join(key))

    async def _join(self, key: str) -> None:
        """Connect to the agent, which may be about to bind its socket."""
        loop = asyncio.get_running_loop()
        while (socket := self.relay.socket(key)) is not None and not self.transport.is_closing():
            try:
                _, other = await loop.create_unix_connection(lambda: End(self.relay, key), str(socket))
            except (FileNotFoundError, ConnectionRefusedError):
                await asyncio.sleep(CONNECT_PAUSE_S)
                continue
            except OSError:
                break
            if self.transport.is_closing():
                other.cut()
                return
            self.other, other.other = other, self
            begun, self._begun = self._begun[KEY_CHARS:], b""
            if begun:
                super().data_received(begun)
            self.transport.resume_reading()
            return
        self.cut()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timeout is not None:
            self._timeout.cancel()
        if self._joining is not None and self.other is None:
            self._joining.cancel()
