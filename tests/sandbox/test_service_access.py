"""Who may use the service: tokens and roles over TCP, permissions over the Unix socket, and what is refused."""

from __future__ import annotations

import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from services import BOX, serving

from rocknroll.sandbox.errors import AddressUnavailable, SocketPathTooLong, SpecInvalid, StateLocked, Unauthenticated
from rocknroll.sandbox.service.access import Role, load_tokens
from rocknroll.sandbox.service.listeners import unix_socket

READ, OPERATE = "r" * 20, "o" * 20


@pytest.fixture
def tokens(folder: Path) -> Path:
    path = folder / "tokens"
    path.write_text(f"# who may look\nread {READ}\noperate {OPERATE}  # and who may act\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("token", "looking", "acting"),
    [(None, 401, 401), ("wrong", 401, 401), (READ, 200, 403), (OPERATE, 200, 201)],
    ids=["none", "wrong", "read", "operate"],
)
async def test_over_tcp_the_role_of_the_token_decides(
    folder: Path, tokens: Path, port: int, token: str | None, looking: int, acting: int
) -> None:
    listen = {"tcp": f"127.0.0.1:{port}", "tokens": str(tokens)}
    async with (
        serving(folder, BOX, listen),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=bearer(token) if token else {}) as http,
    ):
        assert (await http.get("/healthz")).status_code == 200
        for path in ("/v1/sandboxes", "/v1/events", "/metrics"):
            answer = await http.get(path)
            assert answer.status_code == looking, path
        wish = {"pool": "box", "owner": "me"}
        assert (await http.post("/v1/leases", json=wish)).status_code == acting
        if looking == 401:
            assert (answer.json()["code"], answer.headers["www-authenticate"]) == ("unauthenticated", "Bearer")


@pytest.mark.asyncio
async def test_binding_to_a_process_is_refused_where_it_is_not_seen(folder: Path, tokens: Path, port: int) -> None:
    listen = {"tcp": f"127.0.0.1:{port}", "tokens": str(tokens)}
    async with (
        serving(folder, BOX, listen),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=bearer(OPERATE)) as http,
    ):
        answer = await http.post("/v1/leases", json={"pool": "box", "owner": "me", "bind_to_process": True})
        assert answer.status_code == 422 and "Unix socket" in answer.json()["detail"]


@pytest.mark.asyncio
async def test_tcp_without_tokens_is_refused_before_anything_starts(folder: Path, port: int) -> None:
    with pytest.raises(SpecInvalid, match="needs tokens"):
        async with serving(folder, BOX, {"tcp": f"127.0.0.1:{port}"}):
            pass
    assert not (folder / "state").exists()


@pytest.mark.asyncio
async def test_tokens_may_come_from_the_environment(folder: Path, port: int) -> None:
    async with (
        serving(folder, BOX, {"tcp": f"127.0.0.1:{port}"}, {"ROCK_TOKEN_READ": READ}),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=bearer(READ)) as http,
    ):
        assert (await http.get("/v1/pools")).status_code == 200
        assert (await http.post("/v1/sandboxes/box-0/restart")).status_code == 403


@pytest.mark.asyncio
async def test_a_taken_port_is_said_before_anything_starts(folder: Path, tokens: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(AddressUnavailable, match=f"{address}: another program listens there"):
            async with serving(folder, BOX, {"tcp": address, "tokens": str(tokens)}):
                pass
    assert not (folder / "state" / "rock.sock").exists()


@pytest.mark.asyncio
async def test_a_second_service_on_the_folder_is_refused_and_the_first_goes_on(folder: Path) -> None:
    async with serving(folder) as site:
        with pytest.raises(StateLocked, match="rock down"):
            async with serving(folder):
                pass
        transport = httpx.AsyncHTTPTransport(uds=str(site.state.socket))
        async with httpx.AsyncClient(transport=transport, base_url="http://rock") as http:
            assert (await http.get("/v1/pools")).status_code == 200


@pytest.mark.asyncio
async def test_with_a_certificate_tcp_is_encrypted(folder: Path, tokens: Path, port: int) -> None:
    certificate, key = folder / "cert.pem", folder / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    make += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(make, check=True, capture_output=True)
    listen: dict[str, Any] = {"tcp": f"127.0.0.1:{port}", "tokens": str(tokens)}
    listen |= {"certificate": str(certificate), "key": str(key)}
    trust = ssl.create_default_context(cafile=str(certificate))
    async with (
        serving(folder, BOX, listen) as site,
        httpx.AsyncClient(base_url=f"https://localhost:{port}", headers=bearer(READ), verify=trust) as http,
        httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(site.state.socket)), base_url="http://rock"
        ) as uds,
    ):
        assert (await http.get("/v1/pools")).status_code == 200
        assert (await uds.get("/v1/pools")).status_code == 200


def test_a_token_file_that_others_can_read_is_refused(tokens: Path) -> None:
    tokens.chmod(0o640)
    with pytest.raises(SpecInvalid, match="chmod 600"):
        load_tokens(tokens, {})


@pytest.mark.parametrize(
    ("text", "says"),
    [("admin aaaaaaaaaaaaaaaaaaaa", "line 1: must be a role"), ("\nread short-secret", "line 2: a token needs 16")],
)
def test_a_wrong_line_is_named_and_no_token_quoted(tokens: Path, text: str, says: str) -> None:
    tokens.write_text(text)
    with pytest.raises(SpecInvalid, match=says) as caught:
        load_tokens(tokens, {})
    assert not {"aaaa", "short-secret"} & set(str(caught.value).split())


def test_no_token_is_kept_in_words(tokens: Path) -> None:
    loaded = load_tokens(tokens, {"ROCK_TOKEN_OPERATE": READ})
    assert loaded.role(f"bearer {READ}") is Role.OPERATE  # the same token with both roles
    assert READ not in repr(vars(loaded)) and OPERATE not in repr(vars(loaded))
    with pytest.raises(Unauthenticated):
        loaded.role(f"Basic {READ}")


def test_the_socket_of_a_dead_manager_is_replaced(folder: Path) -> None:
    path = folder / "rock.sock"
    unix_socket(path).close()
    assert path.exists()
    with unix_socket(path), pytest.raises(AddressUnavailable, match="another program serves"):
        unix_socket(path)


def test_what_is_no_socket_is_left_alone(folder: Path) -> None:
    path = folder / "rock.sock"
    path.write_text("precious")
    with pytest.raises(AddressUnavailable, match="no socket"):
        unix_socket(path)
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [("x" * 120, SocketPathTooLong, "107"), ("no/folder.sock", AddressUnavailable, "folder does not exist")],
)
def test_a_socket_that_cannot_be_made_says_why(folder: Path, name: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        unix_socket(folder / name)
