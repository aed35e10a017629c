"""A relay carries connections to agents' sockets: for those who know a key, and while its node's lease is in force."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from rocknroll.sandbox import relay as relays
from rocknroll.sandbox.relay import KEY_CHARS, Relay

pytestmark = pytest.mark.asyncio
MIB = 1 << 20


class Agent:
    """Echoes in capitals."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.callers = 0

    async def listen(self) -> asyncio.Server:
        return await asyncio.start_unix_server(self._serve, str(self.socket))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.callers += 1
        while data := await reader.read(1 << 16):
            writer.write(data.upper())
            await writer.drain()
        writer.close()


class Leased(Relay):
    """A relay whose lease a test ends."""

    def __init__(self) -> None:
        super().__init__(lambda: self.lease)
        self.lease = True
        self.address = ("", 0)


@pytest_asyncio.fixture
async def relay() -> AsyncIterator[Leased]:
    relay = Leased()
    relay.address = await relay.listen("127.0.0.1")
    yield relay
    relay.close()


async def dial(relay: Leased, key: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*relay.address)
    writer.write(key.encode())
    return reader, writer


async def ended(reader: asyncio.StreamReader) -> bool:
    """The connection ends without another byte."""
    try:
        async with asyncio.timeout(30.0):
            return await reader.read(1) == b""
    except ConnectionResetError:
        return True


async def test_a_key_leads_to_its_agent_and_to_no_other(relay: Leased, folder: Path) -> None:
    agents = [Agent(folder / "a"), Agent(folder / "b")]
    servers = [await agent.listen() for agent in agents]
    keys = [relay.admit(agent.socket) for agent in agents]
    reader, writer = await dial(relay, keys[1] + "hello")
    assert await reader.readexactly(5) == b"HELLO"
    assert [agent.callers for agent in agents] == [0, 1]
    writer.close()
    for server in servers:
        server.close()


async def test_megabytes_pass_both_ways_whole(relay: Leased, folder: Path) -> None:
    agent = Agent(folder / "a")
    server = await agent.listen()
    reader, writer = await dial(relay, relay.admit(agent.socket))
    sent = bytes(range(97, 123)) * (8 * MIB // 26)

    async def send() -> None:
        for start in range(0, len(sent), MIB):
            writer.write(sent[start : start + MIB])
            await writer.drain()

    _, received = await asyncio.gather(send(), reader.readexactly(len(sent)))
    assert received == sent.upper()
    writer.close()
    server.close()


async def test_an_agent_that_starts_is_waited_for(relay: Leased, folder: Path) -> None:
    agent = Agent(folder / "a")
    reader, writer = await dial(relay, relay.admit(agent.socket) + "early")
    await asyncio.sleep(0)
    server = await agent.listen()
    assert await reader.readexactly(5) == b"EARLY"
    writer.close()
    server.close()


async def test_who_knows_no_key_is_cut_off(relay: Leased, folder: Path) -> None:
    relay.admit(folder / "a")
    reader, _ = await dial(relay, "0" * KEY_CHARS)
    assert await ended(reader)


async def test_who_says_nothing_is_cut_off(relay: Leased, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "HELLO_TIMEOUT_S", 0.01)
    reader, _ = await dial(relay, "half a key")
    assert await ended(reader)


async def test_a_dismissed_key_leads_nowhere_and_what_it_connected_is_cut(relay: Leased, folder: Path) -> None:
    agent = Agent(folder / "a")
    server = await agent.listen()
    key = relay.admit(agent.socket)
    reader, _ = await dial(relay, key + "x")
    assert await reader.readexactly(1) == b"X"
    relay.dismiss(key)
    assert await ended(reader)
    reader, _ = await dial(relay, key)
    assert await ended(reader)
    server.close()


async def test_an_agents_end_ends_the_connection(relay: Leased, folder: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"last words")
        writer.close()

    server = await asyncio.start_unix_server(serve, str(folder / "a"))
    reader, _ = await dial(relay, relay.admit(folder / "a"))
    assert await reader.read() == b"last words"
    server.close()


async def test_nothing_is_carried_once_the_lease_is_over(relay: Leased, folder: Path) -> None:
    agent = Agent(folder / "a")
    server = await agent.listen()
    tether, _ = await dial(relay, relay.tether)
    reader, writer = await dial(relay, relay.admit(agent.socket) + "x")
    assert await reader.readexactly(1) == b"X"
    relay.lease = False
    writer.write(b"too late")
    assert await ended(reader) and await ended(tether)
    server.close()


async def test_a_tether_holds_until_the_relay_ends(relay: Leased) -> None:
    reader, writer = await dial(relay, relay.tether)
    waiting = asyncio.create_task(ended(reader))
    writer.write(b"ignored" * KEY_CHARS)
    done, _ = await asyncio.wait([waiting], timeout=0.05)
    assert not done
    relay.close()
    assert await waiting
