"""The service over its Unix socket: routes, problems, streams, and what becomes of callers that go away."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from services import serving

from rocknroll.sandbox import errors
from rocknroll.sandbox.service import gate
from rocknroll.sandbox.service.problems import status_of
from rocknroll.sandbox.site import Site

pytestmark = pytest.mark.asyncio
Eventually = Callable[[Callable[[], bool]], Awaitable[None]]


@pytest_asyncio.fixture
async def site(folder: Path) -> AsyncIterator[Site]:
    async with serving(folder) as site:
        await site.wait_ready()
        yield site


@pytest_asyncio.fixture
async def http(site: Site) -> AsyncIterator[httpx.AsyncClient]:
    async with connect(site) as client:
        yield client


def connect(site: Site) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(uds=str(site.state.socket))
    return httpx.AsyncClient(transport=transport, base_url="http://rock", timeout=60.0)


async def lease(http: httpx.AsyncClient, **wish: Any) -> dict[str, Any]:
    answer = await http.post("/v1/leases", json={"pool": "box", "owner": "me", **wish})
    assert answer.status_code == 201, answer.text
    state: dict[str, Any] = answer.json()
    return state


async def test_the_socket_is_for_its_user_alone(site: Site) -> None:
    assert stat.S_IMODE(site.state.socket.stat().st_mode) == 0o600


async def test_a_lease_runs_commands_and_is_released(http: httpx.AsyncClient) -> None:
    held = await lease(http)
    path = f"/v1/leases/{held['token']}"
    done = (await http.post(f"{path}/exec", json={"command": "echo out; echo err >&2; exit 3"})).json()
    assert (done["exit_code"], done["stdout"], done["stderr"]) == (3, "b3V0Cg==", "ZXJyCg==")
    rows = (await http.get("/v1/sandboxes")).json()["sandboxes"]
    assert {row["id"]: row["lease"] and row["lease"]["token"] for row in rows}[held["sandbox"]] == held["token"]
    assert (await http.delete(path)).status_code == 204
    over = await http.post(f"{path}/exec", json={"command": "true"})
    assert (over.status_code, over.json()["code"]) == (409, "lease_lost")


async def test_a_deadline_moves_by_heartbeats_of_the_holder_alone(http: httpx.AsyncClient) -> None:
    held = await lease(http, ttl_s=30)
    path = f"/v1/leases/{held['token']}"
    assert (await http.get(path)).json()["deadline"] == held["deadline"]
    moved = (await http.post(f"{path}/heartbeat", json={"ttl_s": 300})).json()
    assert moved["ttl_s"] == 300 and moved["deadline"] > held["deadline"] + 200
    assert (await http.post(f"{path}/heartbeat")).json()["ttl_s"] == 300


async def test_files_go_both_ways_without_being_held_whole(http: httpx.AsyncClient) -> None:
    path = f"/v1/leases/{(await lease(http))['token']}"
    data = os.urandom(1 << 20) * 40 + b"end"

    async def parts() -> AsyncIterator[bytes]:
        for at in range(0, len(data), 100_000):
            yield data[at : at + 100_000]

    put = await http.put(f"{path}/files", params={"path": "deep/big", "mode": 0o640}, content=parts())
    assert put.status_code == 204, put.text
    assert (await http.get(f"{path}/files", params={"path": "deep/big"})).content == data
    found = (await http.get(f"{path}/stat", params={"path": "deep/big"})).json()
    assert (found["kind"], found["size_bytes"], found["mode"] & 0o777) == ("file", len(data), 0o640)
    assert (await http.put(f"{path}/files", params={"path": "empty"}, content=b"")).status_code == 204
    assert (await http.get(f"{path}/files", params={"path": "empty"})).content == b""


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "says"),
    [
        ("GET", "/v1/sandboxes/green", None, 404, "not_found", "box-0, box-1"),
        ("GET", "/v1/sandboxes/box", None, 409, "ambiguous_id", "box-0, box-1"),
        ("GET", "/nowhere", None, 404, "not_found", "/openapi.json"),
        ("GET", "/v1/leases/999", None, 409, "lease_lost", "never given"),
        ("POST", "/v1/leases", {"pool": "green", "owner": "me"}, 404, "not_found", "box"),
        ("POST", "/v1/leases", {"pool": "box"}, 422, "spec_invalid", "body.owner"),
        ("POST", "/v1/leases", {"owner": "me"}, 422, "spec_invalid", "give either"),
        ("POST", "/v1/leases", {"pool": "box", "owner": "me", "tll_s": 3}, 422, "spec_invalid", "tll_s"),
        ("PATCH", "/v1/pools/box", {"size": 2, "ready": 3}, 422, "spec_invalid", "ready=3"),
    ],
)
async def test_errors_are_problems_with_a_stable_code(
    http: httpx.AsyncClient, method: str, path: str, body: Any, status: int, code: str, says: str
) -> None:
    answer = await http.request(method, path, json=body)
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (answer.status_code, problem["status"], problem["code"]) == (status, status, code)
    assert says in problem["detail"] and problem["title"]


async def test_a_file_that_is_not_there_is_a_problem_not_a_broken_stream(http: httpx.AsyncClient) -> None:
    path = f"/v1/leases/{(await lease(http))['token']}"
    answer = await http.get(f"{path}/files", params={"path": "nothing"})
    assert (answer.status_code, answer.json()["code"]) == (422, "file_failed")


async def test_waiting_longer_than_wished_is_a_timeout(http: httpx.AsyncClient) -> None:
    await lease(http)
    await lease(http)
    answer = await http.post("/v1/leases", json={"pool": "box", "owner": "late", "timeout_s": 0.05})
    assert (answer.status_code, answer.json()["code"]) == (504, "lease_timeout")


async def test_a_pool_that_can_never_start_is_unavailable(folder: Path) -> None:
    pool = {"command": ["false"], "restart": {"limit": 1}}
    async with serving(folder, {"bad": pool}) as site, connect(site) as http:
        answer = await http.post("/v1/leases", json={"pool": "bad", "owner": "me"})
        assert (answer.status_code, answer.json()["code"]) == (503, "fleet_exhausted")
        ready = await http.get("/v1/ready")
        assert (ready.status_code, ready.json()["code"]) == (503, "fleet_exhausted")


async def test_only_what_nobody_foresaw_is_an_internal_error() -> None:
    internal = {kind for kind, cls in errors.KINDS.items() if status_of(cls("x")) == 500}
    never_sent = {"group_failed", "state_locked", "address_unavailable", "service_unreachable"}
    assert internal - never_sent == {"sandbox_error", "service_failed"}


async def test_a_caller_that_goes_away_while_waiting_takes_no_sandbox(
    site: Site, http: httpx.AsyncClient, eventually: Eventually
) -> None:
    held = [await lease(http), await lease(http)]
    async with connect(site) as impatient:
        waiting = asyncio.create_task(lease(impatient))
        await eventually(lambda: site.pools()[0]["waiting"] == 1)
        waiting.cancel()
    await eventually(lambda: site.pools()[0]["waiting"] == 0)
    await http.delete(f"/v1/leases/{held[0]['token']}")
    await eventually(lambda: site.pools()[0]["states"]["READY"] == 1)


async def test_a_lease_bound_to_a_process_ends_with_it(
    site: Site, http: httpx.AsyncClient, eventually: Eventually
) -> None:
    program = f"""
import http.client, json, socket, sys
wire = http.client.HTTPConnection("rock")
wire.sock = socket.socket(socket.AF_UNIX)
wire.sock.connect({str(site.state.socket)!r})
wish = {{"pool": "box", "owner": "doomed", "bind_to_process": True}}
wire.request("POST", "/v1/leases", json.dumps(wish), {{"Content-Type": "application/json"}})
print(wire.getresponse().read().decode(), flush=True)
sys.stdin.read()
"""
    holder = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    token = json.loads(await asyncio.to_thread(holder.stdout.readline))["token"]
    assert site.held(token)
    holder.kill()
    holder.wait()
    await eventually(lambda: site.pools()[0]["states"]["LEASED"] == 0)
    answer = await http.get(f"/v1/leases/{token}")
    assert "owner" in answer.json()["detail"]


async def test_events_can_be_read_from_any_point_on(site: Site, http: httpx.AsyncClient) -> None:
    rows = (await http.get("/v1/events", params={"limit": 10_000})).json()["events"]
    assert [row["seq"] for row in rows] == sorted(row["seq"] for row in rows)
    later = (await http.get("/v1/events", params={"after": rows[0]["seq"]})).json()["events"]
    assert later[: len(rows) - 1] == rows[1:]
    newest = (await http.get("/v1/events", params={"newest": True, "limit": 1})).json()["events"]
    assert newest == [later[-1]]


async def test_the_event_stream_goes_on_where_a_listener_left_off(site: Site, http: httpx.AsyncClient) -> None:
    seen = site.events()[-1].seq
    await lease(http)
    async with http.stream("GET", "/v1/events/stream", headers={"Last-Event-ID": str(seen)}) as stream:
        lines = stream.aiter_lines()
        assert await anext(lines) == f"id: {seen + 1}"
        assert await anext(lines) == "event: leased"
        assert json.loads((await anext(lines)).removeprefix("data: "))["kind"] == "leased"
        await lease(http)  # and one that happens while it listens
        kinds = [line async for line in _until(lines, "event: leased")]
        assert kinds[-1] == "event: leased"


async def _until(lines: AsyncIterator[str], last: str) -> AsyncIterator[str]:
    async for line in lines:
        yield line
        if line == last:
            return


async def test_open_streams_end_when_the_service_does(folder: Path) -> None:
    async with serving(folder) as site, connect(site) as http:
        seen = asyncio.Event()

        async def listen() -> None:
            async with http.stream("GET", "/v1/events/stream") as stream:
                async for _ in stream.aiter_lines():
                    seen.set()

        listening = asyncio.create_task(listen())
        await seen.wait()
        site.close_soon()
        await listening


async def test_metrics_say_how_the_pools_stand(http: httpx.AsyncClient) -> None:
    await lease(http, owner="not-a-label")
    text = (await http.get("/metrics")).text
    assert 'rock_sandboxes{pool="box",state="LEASED"} 1.0' in text
    assert 'rock_leases{pool="box"} 1.0' in text
    assert 'rock_start_seconds_count{pool="box"} 2.0' in text
    assert 'rock_events_total{kind="started",pool="box"} 2.0' in text
    assert "not-a-label" not in text


async def test_a_restarted_sandbox_comes_back(site: Site, http: httpx.AsyncClient, eventually: Eventually) -> None:
    assert (await http.post("/v1/sandboxes/box-1/restart")).json() == {"id": "box-1"}
    await eventually(lambda: site.metrics()["box"]["started"] == 3)


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "chunked"])
async def test_a_body_over_the_limit_is_refused(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, announced: bool
) -> None:
    monkeypatch.setattr(gate, "BODY_LIMIT_BYTES", 1000)
    body = json.dumps({"pool": "box", "owner": "x" * 2000}).encode()

    async def parts() -> AsyncIterator[bytes]:
        yield body

    answer = await http.post(
        "/v1/leases", content=body if announced else parts(), headers={"Content-Type": "application/json"}
    )
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


async def test_the_description_names_every_route(http: httpx.AsyncClient) -> None:
    described = (await http.get("/openapi.json")).json()
    assert {"/v1/leases", "/v1/leases/{token}/exec", "/v1/leases/{token}/files", "/v1/events/stream"} <= set(
        described["paths"]
    )
    assert "Problem" in described["components"]["schemas"]
