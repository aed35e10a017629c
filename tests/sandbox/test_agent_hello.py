"""Who may speak to an agent, and what it does with those who may not."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from alone import Client, proof, running_agent
from hypothesis import given
from hypothesis import strategies as st

from rocknroll.sandbox.agent.frames import MAX_BODY_BYTES, PREFIX, pack
from rocknroll.sandbox.agent.proof import hmac_sha256
from rocknroll.sandbox.channel import Channel
from rocknroll.sandbox.errors import ProtocolError


@pytest.fixture
def path(folder: Path) -> Iterator[Path]:
    """The socket of an agent, which has to work when the test is over."""
    with running_agent(folder) as path:
        owner = Client(path)
        yield path
        assert owner.do("exec", argv=["echo", "alive"])[1] == b"alive\n"
        late = Client(path)
        late.close()
        owner.close()


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_the_hand_made_hmac_is_the_standard_one(key: bytes, message: bytes) -> None:
    assert hmac_sha256(key, message) == hmac.new(key, message, hashlib.sha256).hexdigest()


def test_the_secret_never_goes_over_the_wire(folder: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "s"))
    listener.listen(1)

    async def connect() -> bytes:
        dialing = asyncio.create_task(Channel.connect(folder / "s", "a-very-secret-secret", 10.0))
        link, _ = await asyncio.to_thread(listener.accept)
        said = await asyncio.to_thread(link.recv, 1 << 16)
        # An impostor at the socket's place, who does not know the secret, answers.
        answer = {"id": 1, "version": 2, "nonce": "n", "proof": "0" * 64}
        link.sendall(pack(json.dumps(answer).encode()))
        with pytest.raises(ProtocolError, match="does not know the secret"):
            await dialing
        link.settimeout(10)
        said += await asyncio.to_thread(link.recv, 1 << 16)
        link.close()
        return said

    said = asyncio.run(connect())
    assert b"hello" in said
    assert b"prove" not in said
    assert b"a-very-secret-secret" not in said
    listener.close()


def test_nothing_is_done_for_who_has_not_proved_itself(path: Path) -> None:
    for name in ("ping", "exec", "fence", "prove"):
        stranger = Client(path, greet=False)
        assert "say hello" in stranger.ask(op=name, token=1, argv=["true"])[0]["error"]["message"]
        with pytest.raises(EOFError):
            stranger.hear()


def test_a_wrong_proof_ends_the_connection_at_once(path: Path) -> None:
    for wrong in ("0" * 64, "", None, 7, "ü" * 64):
        stranger = Client(path, greet=False)
        stranger.ask(op="hello", nonce="n")
        assert stranger.ask(op="prove", proof=wrong)[0]["error"]["kind"] == "protocol_error"
        with pytest.raises(EOFError):
            stranger.hear()


def test_a_recorded_proof_is_worth_nothing_on_another_connection(path: Path) -> None:
    first = Client(path, greet=False)
    hello, _ = first.ask(op="hello", nonce="n")
    recorded = proof(b"client", "n", hello["nonce"])
    assert "pid" in first.ask(op="prove", proof=recorded)[0]
    second = Client(path, greet=False)
    second.ask(op="hello", nonce="n")
    assert "error" in second.ask(op="prove", proof=recorded)[0]


def test_the_agents_own_proof_cannot_be_sent_back_to_it(path: Path) -> None:
    stranger = Client(path, greet=False)
    hello, _ = stranger.ask(op="hello", nonce="n")
    assert "error" in stranger.ask(op="prove", proof=hello["proof"])[0]


def test_a_second_hello_for_another_nonce_is_refused(path: Path) -> None:
    stranger = Client(path, greet=False)
    stranger.ask(op="hello", nonce="n")
    assert "error" in stranger.ask(op="hello", nonce="m")[0]


@pytest.mark.parametrize(
    "frame",
    [
        PREFIX.pack(1 << 31, 0),
        PREFIX.pack(2, 1 << 31),
        PREFIX.pack(0xFFFFFFFF, 0xFFFFFFFF),
        pack(b"no json"),
        pack(b"[]"),
        pack(b"{}"),
        pack(b'{"id": "x", "op": "ping"}'),
        pack(b"[" * 100_000),
        os.urandom(4096),
    ],
    ids=["2 GiB header", "2 GiB body", "all bits", "no json", "a list", "no id", "id no number", "deep", "noise"],
)
@pytest.mark.parametrize("known", [True, False], ids=["friend", "stranger"])
def test_a_broken_frame_ends_its_connection_only(path: Path, frame: bytes, known: bool) -> None:
    client = Client(path, greet=known)
    client.link.sendall(frame)
    client.link.shutdown(socket.SHUT_WR)
    try:
        assert client.hear()[0]["error"]["kind"] == "protocol_error"
        assert client.link.recv(1) == b""
    except (EOFError, ConnectionError):
        pass  # Without an answer is well too: half a frame has none.


def test_a_stranger_may_not_make_the_agent_hold_large_frames(path: Path) -> None:
    stranger = Client(path, greet=False)
    stranger.link.sendall(PREFIX.pack(2, MAX_BODY_BYTES))
    assert "too large" in stranger.hear()[0]["error"]["message"]


def test_half_a_frame_and_a_lost_client_leave_nothing(path: Path) -> None:
    for end in (1, 7, 8, 20):
        client = Client(path)
        client.link.sendall(pack(b'{"id": 1, "op": "ping"}', b"x" * 50)[:end])
        client.close()


def test_strangers_who_say_nothing_do_not_keep_others_out(path: Path) -> None:
    strangers = [Client(path, greet=False) for _ in range(100)]
    friend = Client(path)
    assert friend.do("exec", argv=["echo", "in"])[1] == b"in\n"
    friend.close()
    for stranger in strangers:
        stranger.close()


def test_a_client_that_does_not_read_is_cut_off_before_it_fills_the_memory(path: Path) -> None:
    greedy = Client(path)
    greedy.do("write", bytes(1 << 20), path="big")
    greedy.link.setblocking(False)
    request = pack(json.dumps({"id": 9, "op": "read", "token": 1, "path": "big"}).encode())
    other = Client(path)
    with contextlib.suppress(BlockingIOError, ConnectionError):
        while True:
            greedy.link.send(request * 50)
    # It is no longer read from; everybody else is.
    assert other.do("exec", argv=["echo", "served"])[1] == b"served\n"
    agent = int(other.do("exec", argv=["sh", "-c", "echo $PPID"])[1])
    lines = Path(f"/proc/{agent}/status").read_text().splitlines()
    assert next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) < 200 << 10  # KiB
    other.close()
    greedy.close()
