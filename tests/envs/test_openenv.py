"""The OpenEnv server over a real fleet: episodes, what clients do wrong, and that none keeps a sandbox for nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from openenv.core import env_server as core
from openenv.core.generic_client import GenericEnvClient
from waiting import eventually
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from rocknroll.envs.adapters.openenv_client import OpenEnvEnv
from rocknroll.envs.adapters.openenv_server import Access, create_app, listening, serving
from rocknroll.envs.adapters.openenv_wire import TextAction
from rocknroll.envs.own import OwnFamily
from rocknroll.envs.places import FleetPlaces, Patience, sandbox_spec
from rocknroll.sandbox.errors import (
    AddressUnavailable,
    EnvCrashed,
    EnvError,
    FleetExhausted,
    LeaseTimeout,
    SandboxError,
    ServiceUnreachable,
    SpecInvalid,
)
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.runtimes.process import ProcessRuntime

pytestmark = pytest.mark.asyncio
TOKEN = "a token of some length"
PATIENCE = Patience(step_s=3600.0)


@dataclass
class Served:
    url: str
    fleet: Fleet

    @property
    def leased(self) -> int:
        return int(self.fleet.metrics()["state_LEASED"])

    @asynccontextmanager
    async def session(self, **how: Any) -> AsyncIterator[ClientConnection]:
        async with connect(self.url.replace("http", "ws") + "/ws", **how) as socket:
            yield socket


@asynccontextmanager
async def served(
    target: str = "own_envs:Lock",
    size: int = 1,
    access: Access | None = None,
    idle_s: float = 900.0,
    ping_s: float = 20.0,
    patience: Patience = PATIENCE,
    ready: bool = True,
) -> AsyncIterator[Served]:
    family = OwnFamily(target)
    async with Fleet(sandbox_spec(family), size, ProcessRuntime()) as fleet:
        app = create_app(family, FleetPlaces(fleet, patience), access or Access(), idle_s)
        await eventually(lambda: not ready or fleet.metrics()["state_READY"] == size, "the fleet is ready")
        async with listening(app, ping_s=ping_s) as url:
            yield Served(url, fleet)


async def ask(socket: ClientConnection, kind: str, **data: Any) -> dict[str, Any]:
    await socket.send(json.dumps({"type": kind, "data": data}))
    reply: dict[str, Any] = json.loads(await socket.recv())
    return reply


async def test_the_openenv_package_plays_an_episode() -> None:
    async with served() as server, GenericEnvClient(base_url=server.url) as env:
        begun = await env.reset(task="train-3", episode_id="mine")
        assert (begun.observation["text"], begun.done, begun.reward) == ("A lock.", False, None)
        assert server.leased == 1
        wrong = await env.step({"text": "1"})
        assert (wrong.observation["text"], wrong.reward, wrong.done) == ("1: closed, try 1", 0.0, False)
        right = await env.step({"text": "3"})
        assert (right.reward, right.done, right.metadata) == (1.0, True, {"won": True, "tries": 2})
        assert await env.state() == {"episode_id": "mine", "step_count": 2, "task": "train-3"}
        assert server.leased == 0
        assert (await env.reset(split="unseen", index=1)).observation["text"] == "A lock."
        assert (await env.step({"text": "9"})).done


async def test_our_client_plays_an_episode_as_a_gymnasium_environment() -> None:
    def play(url: str) -> None:
        with OpenEnvEnv(url) as env:
            assert env.reset(options={"task": "train-3"}) == ("A lock.", {"won": False})
            assert env.step("1") == ("1: closed, try 1", 0.0, False, False, {"won": False, "tries": 1})
            assert env.step("3") == ("It opens.", 1.0, True, False, {"won": True, "tries": 2})
            env.reset(options={"task": "train-3"})
            assert [env.step("no")[3] for _ in range(5)] == [False] * 4 + [True]

    async with served() as server:
        await asyncio.to_thread(play, server.url)
        await eventually(lambda: server.leased == 0, "the lease was given back")


async def test_our_client_plays_on_a_server_of_the_openenv_package() -> None:
    class Echo(core.Environment):  # type: ignore[misc]
        state = core.State()

        def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
            return Heard(message="hello")

        def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
            return Heard(message=action.message, done=True, reward=0.5)

    class Said(core.Action):  # type: ignore[misc]
        message: str

    class Heard(core.Observation):  # type: ignore[misc]
        message: str

    def play(url: str) -> None:
        with OpenEnvEnv(url, action=lambda text: {"message": text}, text=lambda seen: str(seen["message"])) as env:
            assert env.reset()[0] == "hello"
            assert env.step("moin")[:4] == ("moin", 0.5, True, False)

    async with listening(core.create_fastapi_app(Echo, Said, Heard)) as url:
        await asyncio.to_thread(play, url)


async def test_only_those_who_play_hold_a_sandbox() -> None:
    impatient = Patience(sandbox_s=0.2)
    async with (
        served(patience=impatient) as server,
        server.session(),
        server.session(),
        server.session() as playing,
    ):
        assert (await ask(playing, "reset"))["type"] == "observation"
        assert server.leased == 1
        async with server.session() as late:
            refused = await ask(late, "reset")
            assert (refused["data"]["code"], refused["data"]["kind"]) == ("CAPACITY_REACHED", "lease_timeout")
            await playing.close()
            await eventually(lambda: server.leased == 0, "the lease of the one who left was given back")
            assert (await ask(late, "reset"))["type"] == "observation"


async def test_a_client_that_vanishes_in_the_middle_of_a_step_gives_its_sandbox_back() -> None:
    async with served() as server:
        async with server.session() as socket:
            await ask(socket, "reset")
            before = server.fleet.snapshot()[0]["pid"]
            await socket.send(json.dumps({"type": "step", "data": {"text": "hang"}}))
            await asyncio.sleep(0)
            socket.transport.abort()
        await eventually(
            lambda: server.fleet.snapshot()[0]["pid"] != before and server.fleet.metrics()["state_READY"] == 1,
            "the sandbox that still hangs was replaced",
        )


async def test_a_half_open_connection_gives_its_sandbox_back() -> None:
    async with served(ping_s=0.3) as server, server.session(ping_interval=None) as socket:
        await ask(socket, "reset")
        socket.transport.pause_reading()  # from here on it answers no ping, and never says goodbye
        await eventually(lambda: server.leased == 0, "its lease ended")
        async with server.session() as other:
            assert (await ask(other, "reset"))["type"] == "observation"
        socket.transport.abort()


async def test_a_silent_session_gives_its_sandbox_back_and_is_told() -> None:
    async with served(idle_s=0.5) as server, server.session() as socket:
        await ask(socket, "reset")
        assert json.loads(await socket.recv())["data"]["code"] == "SESSION_ERROR"
        assert server.leased == 0
        with pytest.raises(ConnectionClosed):
            await socket.recv()


async def test_the_end_of_the_server_ends_its_sessions() -> None:
    family = OwnFamily("own_envs:Lock")
    async with Fleet(sandbox_spec(family), 1, ProcessRuntime()) as fleet:
        app = create_app(family, FleetPlaces(fleet, PATIENCE), Access(), 900.0)
        async with listening(app) as url, Served(url, fleet).session() as socket:
            await ask(socket, "reset")
            assert fleet.metrics()["state_LEASED"] == 1
        assert fleet.metrics()["state_LEASED"] == 0


async def test_an_environment_that_cannot_be_made_leaks_no_slot() -> None:
    async with served("own_envs:Broken", ready=False) as server:
        for _ in range(3):
            async with server.session() as socket:
                reply = await ask(socket, "reset")
                assert (reply["data"]["code"], reply["data"]["kind"]) == ("FACTORY_ERROR", "fleet_exhausted")
                assert "cannot be made" in reply["data"]["message"]
        with pytest.raises(FleetExhausted):
            await asyncio.to_thread(OpenEnvEnv(server.url).reset)


async def test_a_reset_that_fails_gives_its_sandbox_back() -> None:
    async with served("own_envs:Unready") as server:
        for _ in range(2):
            async with server.session() as socket:
                reply = await ask(socket, "reset")
                assert (reply["data"]["code"], reply["data"]["kind"]) == ("EXECUTION_ERROR", "env_error")
                assert server.leased == 0


async def test_a_sandbox_that_is_killed_is_a_typed_error_and_the_session_goes_on() -> None:
    def play(url: str) -> None:
        with OpenEnvEnv(url) as env:
            env.reset()
            with pytest.raises(EnvCrashed):
                env.step("crash")
            env.reset()
            with pytest.raises(EnvError, match="jammed"):
                env.step("raise")

    async with served() as server, server.session() as socket:
        await ask(socket, "reset")
        await socket.send(json.dumps({"type": "step", "data": {"text": "hang"}}))
        os.kill(server.fleet.snapshot()[0]["pid"], signal.SIGKILL)
        reply = json.loads(await socket.recv())
        assert reply["type"] == "error"
        assert reply["data"]["kind"] in ("sandbox_lost", "lease_lost")
        assert (await ask(socket, "step", text="1"))["data"]["code"] == "SESSION_ERROR"
        await eventually(lambda: server.fleet.metrics()["state_READY"] == 1, "a fresh sandbox is there")
        assert (await ask(socket, "reset", task="train-3"))["type"] == "observation"
        assert (await ask(socket, "step", text="3"))["data"]["reward"] == 1.0
        await asyncio.to_thread(play, server.url)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ("{", "INVALID_JSON"),
        (b"bytes", "INVALID_JSON"),
        ("[]", "UNKNOWN_TYPE"),
        ('{"type": ["reset"]}', "UNKNOWN_TYPE"),
        ('{"type": "jump"}', "UNKNOWN_TYPE"),
        ('{"type": "step", "data": {"text": 5}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"command": "3"}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"tsak": "train-1"}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"task": "train-99"}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"split": "seen"}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": 1}', "VALIDATION_ERROR"),
    ],
)
async def test_what_is_asked_wrongly_is_refused_and_the_episode_goes_on(sent: str | bytes, code: str) -> None:
    async with served() as server, server.session() as socket:
        await ask(socket, "reset", task="train-3")
        await socket.send(sent)
        assert json.loads(await socket.recv())["data"]["code"] == code
        assert (await ask(socket, "step", text="3"))["data"]["reward"] == 1.0


async def test_browsers_and_strangers_are_refused_before_anything_is_leased() -> None:
    async with served(access=Access(token=TOKEN)) as server:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            with pytest.raises(InvalidStatus):
                async with server.session(additional_headers=headers):
                    pass
        right = {"Authorization": f"Bearer {TOKEN}"}
        with pytest.raises(InvalidStatus):
            async with server.session(additional_headers=right, origin="http://evil.example"):
                pass
        with pytest.raises(ServiceUnreachable):
            await asyncio.to_thread(OpenEnvEnv(server.url).reset)
        async with server.session(additional_headers=right) as socket:
            assert (await ask(socket, "reset"))["type"] == "observation"


async def test_the_server_listens_on_this_machine_alone_unless_there_is_a_token() -> None:
    for host in ("0.0.0.0", "::", "example.org"):
        with pytest.raises(SpecInvalid, match="give a token"):
            async with serving("own_envs:Lock", count=1, host=host):
                pass
    async with serving("own_envs:Lock", count=1, patience=PATIENCE) as url:
        assert url.startswith("http://127.0.0.1:")
        port = int(url.rpartition(":")[2])
        with pytest.raises(AddressUnavailable):
            async with serving("own_envs:Lock", count=1, port=port):
                pass


async def test_the_schema_is_what_generic_clients_build_actions_from() -> None:
    async with served() as server, httpx.AsyncClient() as http:
        action = (await http.get(f"{server.url}/schema")).json()["action"]
        assert (action["title"], action["required"]) == (TextAction.__name__, ["text"])
        assert (await http.get(f"{server.url}/health")).json() == {"status": "healthy"}
        assert (await http.get(f"{server.url}/metadata")).json()["description"].startswith("Say the number")


async def test_the_client_says_what_is_wrong() -> None:
    async with served(patience=Patience(sandbox_s=0.2)) as server, server.session() as other:
        await ask(other, "reset")
        with pytest.raises(LeaseTimeout):
            await asyncio.to_thread(OpenEnvEnv(server.url).reset)
        with pytest.raises(SandboxError, match="no task 'nowhere'"):
            await asyncio.to_thread(lambda: OpenEnvEnv(server.url).reset(options={"task": "nowhere"}))
    with pytest.raises(ServiceUnreachable):
        await asyncio.to_thread(OpenEnvEnv(server.url).reset)
