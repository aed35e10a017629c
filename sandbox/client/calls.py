"""Every request that a client can make, said once for both clients (no I/O here).

A `Call` is what to send and how to read the answer. Errors of the service arrive as the classes of
`errors.py` again, known by the `code` of the problem that it sends.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from rocknroll.sandbox.errors import SandboxError, ServiceFailed, from_wire
from rocknroll.sandbox.leased import FILE_TIMEOUT_S, REPLY_GRACE_S, SESSION_TIMEOUT_S
from rocknroll.sandbox.results import ExecResult, FileStat
from rocknroll.sandbox.session import CLOSE_TIMEOUT_S
from rocknroll.sandbox.spec import EnvSpec

ResultT = TypeVar("ResultT")
Json = dict[str, Any]
COMMIT_S = 600.0
QUICK_S = 30.0
"""For requests that wait for nothing."""


@dataclass(frozen=True)
class Call(Generic[ResultT]):
    """One request. `timeout_s`: when an answer is overdue."""

    method: str
    path: str
    read: Callable[[Any], ResultT]
    """From the answer's JSON (None without a body) to the result."""
    params: Mapping[str, Any] = field(default_factory=dict)
    json: Mapping[str, Any] | None = None
    timeout_s: float = QUICK_S


@dataclass(frozen=True)
class LeaseInfo:
    """A lease as it stood when the service answered; `deadline` in seconds since the epoch."""

    token: int
    sandbox_id: str
    owner: str
    ttl_s: float
    deadline: float
    python: tuple[str, ...]
    env: EnvSpec | None


@dataclass(frozen=True)
class Event:
    """Something that happened, at a time in seconds since the epoch."""

    seq: int
    time: float
    sandbox: str
    kind: str
    detail: str


def error_of(status: int, body: Any) -> SandboxError:
    """The error that an answer stands for; `body` is its JSON, or None where it has none."""
    if not isinstance(body, Mapping) or "code" not in body:
        return ServiceFailed(f"the service answered with status {status} and no reason; is it a rock service?")
    return from_wire(
        {
            "kind": body["code"],
            "message": body.get("detail", ""),
            "type": body.get("error_type") or "",
            "traceback": body.get("traceback") or "",
            "exit_code": body.get("exit_code"),
        }
    )


def healthz() -> Call[Json]:
    return Call("GET", "/healthz", dict)


def metrics() -> str:
    """Its path; the answer is text."""
    return "/metrics"


def pools() -> Call[list[Json]]:
    return Call("GET", "/v1/pools", lambda answer: list(answer["pools"]))


def wait_ready(timeout_s: float) -> Call[None]:
    return Call("GET", "/v1/ready", lambda answer: None, {"timeout_s": timeout_s}, timeout_s=timeout_s + REPLY_GRACE_S)


def snapshot() -> Call[list[Json]]:
    return Call("GET", "/v1/sandboxes", lambda answer: list(answer["sandboxes"]))


def describe(sandbox_id: str) -> Call[Json]:
    return Call("GET", f"/v1/sandboxes/{_part(sandbox_id)}", dict)


def restart(sandbox_id: str) -> Call[str]:
    return Call("POST", f"/v1/sandboxes/{_part(sandbox_id)}/restart", lambda answer: str(answer["id"]))


def remove(sandbox_id: str) -> Call[str]:
    return Call("DELETE", f"/v1/sandboxes/{_part(sandbox_id)}", lambda answer: str(answer["id"]))


def overview(events: int) -> Call[Json]:
    return Call("GET", "/v1/overview", dict, {"events": events})


def commit(sandbox_id: str, tag: str) -> Call[str]:
    path = f"/v1/sandboxes/{_part(sandbox_id)}/commit"
    return Call("POST", path, lambda answer: str(answer["image"]), json={"tag": tag}, timeout_s=COMMIT_S)


def scale(pool: str, size: int, ready: int | None) -> Call[Json]:
    return Call("PATCH", f"/v1/pools/{_part(pool)}", dict, json={"size": size, "ready": ready})


def alerts() -> Call[list[Json]]:
    return Call("GET", "/v1/alerts", lambda answer: list(answer["alerts"]))


def events(after: int, limit: int, newest: bool) -> Call[list[Event]]:
    params = {"after": after, "limit": limit, "newest": newest}
    return Call("GET", "/v1/events", lambda answer: [Event(**row) for row in answer["events"]], params)


def lease(wish: Mapping[str, Any], timeout_s: float) -> Call[LeaseInfo]:
    return Call(
        "POST", "/v1/leases", _lease_info, json={**wish, "timeout_s": timeout_s}, timeout_s=timeout_s + REPLY_GRACE_S
    )


def look(token: int) -> Call[LeaseInfo]:
    return Call("GET", f"/v1/leases/{token}", _lease_info)


def heartbeat(token: int, ttl_s: float | None) -> Call[LeaseInfo]:
    return Call("POST", f"/v1/leases/{token}/heartbeat", _lease_info, json={"ttl_s": ttl_s})


def release(token: int, recycle: bool) -> Call[None]:
    return Call("DELETE", f"/v1/leases/{token}", lambda answer: None, {"recycle": recycle})


def execute(
    token: int,
    command: str | Sequence[str],
    timeout_s: float,
    stdin: bytes,
    cwd: str,
    variables: Mapping[str, str] | None,
    output_bytes: int,
) -> Call[ExecResult]:
    wish = {
        "command": command if isinstance(command, str) else list(command),
        "timeout_s": timeout_s,
        "stdin": base64.b64encode(stdin).decode(),
        "cwd": cwd,
        "variables": dict(variables or {}),
        "output_bytes": output_bytes,
    }
    return Call("POST", f"/v1/leases/{token}/exec", exec_result, json=wish, timeout_s=timeout_s + 2 * REPLY_GRACE_S)


def stat(token: int, path: str) -> Call[FileStat]:
    return Call(
        "GET",
        f"/v1/leases/{token}/stat",
        lambda answer: FileStat(**answer),
        {"path": path},
        timeout_s=FILE_TIMEOUT_S + REPLY_GRACE_S,
    )


def files(token: int) -> str:
    """Path that files are read from and written to."""
    return f"/v1/leases/{token}/files"


def archive(token: int) -> str:
    """Path that folders are read from and written to, as tar streams."""
    return f"/v1/leases/{token}/archive"


def streams(token: int) -> str:
    """Path that commands are begun at whose output is streamed."""
    return f"/v1/leases/{token}/streams"


def stream_wish(command: str | Sequence[str], timeout_s: float, cwd: str, variables: Mapping[str, str] | None) -> Json:
    return {
        "command": command if isinstance(command, str) else list(command),
        "timeout_s": timeout_s,
        "cwd": cwd,
        "variables": dict(variables or {}),
    }


def kill(token: int, stream: str) -> Call[None]:
    return Call("DELETE", f"{streams(token)}/{stream}", lambda answer: None)


def env(token: int) -> str:
    """Path of requests to environments."""
    return f"/v1/leases/{token}/env"


def open_session(token: int, name: str, cwd: str, variables: Mapping[str, str] | None) -> Call[Json]:
    wish = {"name": name, "cwd": cwd, "variables": dict(variables or {})}
    return Call("POST", f"/v1/leases/{token}/sessions", dict, json=wish, timeout_s=SESSION_TIMEOUT_S + REPLY_GRACE_S)


def run(token: int, session: str, command: str, timeout_s: float, output_bytes: int) -> Call[ExecResult]:
    wish = {"command": command, "timeout_s": timeout_s, "output_bytes": output_bytes}
    path = f"/v1/leases/{token}/sessions/{_part(session)}/run"
    return Call("POST", path, exec_result, json=wish, timeout_s=timeout_s + 2 * REPLY_GRACE_S)


def interrupt(token: int, session: str) -> Call[bool]:
    path = f"/v1/leases/{token}/sessions/{_part(session)}/interrupt"
    return Call("POST", path, lambda answer: bool(answer["interrupted"]), timeout_s=FILE_TIMEOUT_S + REPLY_GRACE_S)


def close_session(token: int, session: str) -> Call[None]:
    path = f"/v1/leases/{token}/sessions/{_part(session)}"
    return Call("DELETE", path, lambda answer: None, timeout_s=CLOSE_TIMEOUT_S + REPLY_GRACE_S)


def _lease_info(answer: Json) -> LeaseInfo:
    return LeaseInfo(
        token=int(answer["token"]),
        sandbox_id=answer["sandbox"],
        owner=answer["owner"],
        ttl_s=float(answer["ttl_s"]),
        deadline=float(answer["deadline"]),
        python=tuple(answer["python"]),
        env=None if answer["env"] is None else EnvSpec.model_validate(answer["env"]),
    )


def exec_result(answer: Json) -> ExecResult:
    streams = {name: base64.b64decode(answer[name]) for name in ("stdout", "stderr")}
    return ExecResult(**{**answer, **streams})


def _part(text: str) -> str:
    return quote(text, safe="") or "%20"
