"""Both clients against a real service: the same methods, the same errors, heartbeats of their own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from services import BOX, serving

from rocknroll.sandbox.client import AsyncClient, AsyncLease, Client, Lease
from rocknroll.sandbox.errors import (
    AmbiguousId,
    FileFailed,
    Forbidden,
    LeaseLost,
    LeaseTimeout,
    NotFound,
    ServiceFailed,
    ServiceUnreachable,
    SpecInvalid,
)
from rocknroll.sandbox.leased import LeasedSandbox
from rocknroll.sandbox.site import Site

pytestmark = pytest.mark.asyncio
Eventually = Callable[[Callable[[], bool]], Awaitable[None]]


@pytest_asyncio.fixture
async def site(folder: Path) -> AsyncIterator[Site]:
    async with serving(folder) as site:
        await site.wait_ready()
        yield site


@pytest_asyncio.fixture
async def client(site: Site) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(site.state.socket) as client:
        yield client


async def test_a_lease_is_used_as_one_of_the_fleet(client: AsyncClient) -> None:
    async with await client.lease("box", owner="me") as sandbox:
        done = await sandbox.exec(["sh", "-c", "cat; echo $COLOUR >&2"], stdin=b"\x00\xff", variables={"COLOUR": "red"})
        assert (done.check().stdout, done.stderr) == (b"\x00\xff", b"red\n")
        await sandbox.write("a/b", b"data" * 1000, mode=0o600)
        assert await sandbox.read("a/b") == b"data" * 1000
        assert (await sandbox.stat("a/b")).size_bytes == 4000
        assert [row["lease"]["owner"] for row in await client.snapshot() if row["lease"]] == ["me"]
    assert not [row for row in await client.snapshot() if row["lease"]]
    with pytest.raises(LeaseLost, match="released"):
        await sandbox.exec("true")
    await sandbox.release()


async def test_the_blocking_client_does_the_same(site: Site) -> None:
    def work() -> None:
        with Client(site.state.socket) as client:
            client.wait_ready()
            with client.lease("box", owner="me") as sandbox:
                assert sandbox.exec("echo hello").check().stdout == b"hello\n"
                sandbox.write("file", iter([b"one ", b"two"]))
                assert sandbox.read("file") == b"one two"
                assert sandbox.stat("file").kind == "file"
                again = client.held(sandbox.token)
                assert (again.id, again.owner) == (sandbox.id, "me")
            with pytest.raises(LeaseLost):
                client.held(sandbox.token)
            assert client.pools()[0]["states"]["READY"] == 2
            assert "rock_sandboxes" in client.metrics()
            assert client.healthz()["status"] == "ok"
            last = client.events(limit=1, newest=True)[0]
            client.restart("box-0")
            assert next(client.follow(last.seq)).kind == "recycled"

    await asyncio.to_thread(work)


async def test_errors_arrive_as_their_own_classes(client: AsyncClient) -> None:
    with pytest.raises(NotFound, match="box-0, box-1"):
        await client.describe("green")
    with pytest.raises(AmbiguousId):
        await client.restart("box")
    with pytest.raises(SpecInvalid, match="size"):
        await client.scale("box", 0)
    sandbox = await client.lease("box")
    with pytest.raises(FileFailed, match="nothing"):
        await sandbox.read("nothing")
    await client.lease("box")
    with pytest.raises(LeaseTimeout):
        await client.lease("box", timeout_s=0.01)


async def test_heartbeats_keep_a_lease_and_none_let_it_end(
    client: AsyncClient, site: Site, eventually: Eventually
) -> None:
    kept = await client.lease("box", ttl_s=0.4)
    left = await client.lease("box", ttl_s=0.4, heartbeats=False)
    before = kept.deadline
    await eventually(lambda: kept.deadline > before + 0.5)
    assert (await kept.exec("echo here")).stdout == b"here\n"
    with pytest.raises(LeaseLost, match="expired"):
        await left.exec("true")
    await kept.release()


async def test_a_blocking_holder_beats_from_a_thread(site: Site, eventually: Eventually) -> None:
    with Client(site.state.socket) as client:
        sandbox = await asyncio.to_thread(client.lease, "box", ttl_s=0.4)
        before = sandbox.deadline
        await eventually(lambda: sandbox.deadline > before + 0.5)
        await asyncio.to_thread(sandbox.release)


async def test_a_holder_learns_from_a_heartbeat_that_its_lease_is_lost(
    client: AsyncClient, eventually: Eventually
) -> None:
    sandbox = await client.lease("box", ttl_s=0.5)
    await client.restart(sandbox.id)
    await eventually(lambda: bool(sandbox.lost))
    assert "restarted by an operator" in sandbox.lost


async def test_any_number_of_callers_may_wait(client: AsyncClient, site: Site) -> None:
    async def use(number: int) -> bytes:
        async with await client.lease("box", owner=f"owner {number}", heartbeats=False) as sandbox:
            return (await sandbox.exec(f"echo {number}")).stdout

    assert await asyncio.gather(*(use(number) for number in range(120))) == [b"%d\n" % n for n in range(120)]


async def test_events_are_followed_as_they_happen(client: AsyncClient) -> None:
    last = (await client.events(newest=True, limit=1))[0].seq
    following = client.follow(last)
    await client.lease("box", owner="me")
    event = await anext(following)
    assert (event.seq, event.kind) == (last + 1, "leased") and "me" in event.detail


async def test_a_service_that_is_not_there_is_named(folder: Path) -> None:
    async with AsyncClient(folder / "rock.sock") as client:
        with pytest.raises(ServiceUnreachable, match=r"rock\.sock.*rock up"):
            await client.pools()
    with Client("http://127.0.0.1:1") as blocking, pytest.raises(ServiceUnreachable, match=r"127\.0\.0\.1:1"):
        blocking.pools()


async def test_a_service_that_ends_meanwhile_is_unreachable_not_silent(folder: Path) -> None:
    async with serving(folder) as site:
        client = AsyncClient(site.state.socket)
        sandbox = await client.lease("box", ttl_s=0.3)
    with pytest.raises(ServiceUnreachable):
        await sandbox.exec("true")
    await client.aclose()


async def test_a_release_that_failed_can_be_tried_again(folder: Path) -> None:
    async with serving(folder) as site:
        client, blocking = AsyncClient(site.state.socket), Client(site.state.socket)
        sandbox = await client.lease("box")
        other = await asyncio.to_thread(blocking.lease, "box")
    for _ in range(2):
        with pytest.raises(ServiceUnreachable):
            await sandbox.release()
        with pytest.raises(ServiceUnreachable):
            other.release()
    assert (sandbox.lost, other.lost) == ("", "")
    await client.aclose()
    blocking.close()


async def test_another_http_server_is_not_taken_for_the_service() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 418 I'm a teapot\r\nContent-Length: 5\r\n\r\nshort")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, AsyncClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
        with pytest.raises(ServiceFailed, match="418"):
            await client.pools()


async def test_an_address_that_is_no_url_is_refused() -> None:
    with pytest.raises(SpecInvalid, match="no URL"):
        Client("http://host:port")


async def test_a_role_that_may_not_is_told_so(folder: Path, unused_tcp_port: int) -> None:
    token = "r" * 20
    listen = {"tcp": f"127.0.0.1:{unused_tcp_port}"}
    async with (
        serving(folder, BOX, listen, {"ROCK_TOKEN_READ": token}),
        AsyncClient(f"http://127.0.0.1:{unused_tcp_port}", token) as client,
    ):
        assert len(await client.snapshot()) == 2
        with pytest.raises(Forbidden):
            await client.lease("box")


def _signature(method: Any) -> list[tuple[str, Any]]:
    parameters = list(inspect.signature(method).parameters.values())[1:]
    return [(parameter.name, parameter.default) for parameter in parameters]


async def test_both_clients_and_leases_have_the_same_methods() -> None:
    for blocking, awaiting in ((Client, AsyncClient), (Lease, AsyncLease)):
        names = {name for name in vars(blocking) if not name.startswith("_")} - {"close"}
        assert names == {name for name in vars(awaiting) if not name.startswith("_")} - {"aclose"}
        for name in names:
            assert _signature(getattr(blocking, name)) == _signature(getattr(awaiting, name)), name


async def test_a_lease_has_the_methods_of_a_leased_sandbox() -> None:
    for name in ("exec", "read", "write", "stat", "heartbeat", "release"):
        assert _signature(getattr(AsyncLease, name)) == _signature(getattr(LeasedSandbox, name)), name
