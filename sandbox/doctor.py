"""What sandboxes can count on here: the checks behind `rock doctor`."""

from __future__ import annotations

import resource
import tempfile
from pathlib import Path
from typing import Any

from rocknroll.sandbox.channel import SOCKET_PATH_LIMIT_BYTES
from rocknroll.sandbox.errors import RuntimeUnavailable, SandboxError
from rocknroll.sandbox.runtimes.base import Isolation
from rocknroll.sandbox.runtimes.grants import LIMITED, Grants
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.sandbox.state_folder import STATE_VARIABLE, StateFolder, default_folder

FOLDER_BYTES = len("/rock-01234567-abcdefgh/1000000/agent.sock")
"""What the process runtime appends to the temporary folder, at most."""
DESCRIPTORS_FOR_200_SANDBOXES = 1024
DOCKER = "docker runtime"


async def examine() -> dict[str, Any]:
    """`checks`: each with `name`, `ok`, `found` and `remedy`; `isolation` of the process runtime; `ok` over all that
    process sandboxes need (Docker is only for `runtime: docker`).

    Raises:
        RuntimeUnavailable: the process runtime cannot work here at all.
    """
    runtime = ProcessRuntime()
    try:
        grants = await runtime.grants()
    finally:
        await runtime.close()
    isolation = grants.isolation
    checks = [_isolation(isolation), _limits(grants), _socket_paths(), _descriptors(), _state(), await _docker()]
    return {
        "ok": all(check["ok"] for check in checks if check["name"] != DOCKER),
        "checks": checks,
        "isolation": {
            "runtime": runtime.name,
            "level": isolation.level,
            "separated": isolation.separated,
            "shared": isolation.shared,
            "missing": isolation.missing,
            "remedy": isolation.remedy,
        },
    }


async def _docker() -> dict[str, Any]:
    from rocknroll.sandbox.runtimes.docker import DockerRuntime  # its library takes a moment to import

    runtime = DockerRuntime("doctor")
    try:
        isolation = await runtime.isolation()
    except RuntimeUnavailable as error:
        return _check(DOCKER, False, str(error))
    finally:
        await runtime.close()
    found = f"{isolation.level}; own: {', '.join(isolation.separated)}; shared: {', '.join(isolation.shared)}"
    return _check(DOCKER, not isolation.missing, f"{found}; {isolation.missing}".rstrip("; "), isolation.remedy)


def _state() -> dict[str, Any]:
    folder = StateFolder(default_folder())
    pid = folder.manager()
    found = f"{folder.path}: {'no manager' if pid is None else f'the manager with pid {pid}'}"
    try:
        folder.check()
    except SandboxError as error:
        return _check("state folder", False, str(error), f"export {STATE_VARIABLE}=/tmp/rock")
    return _check("state folder", True, found)


def _check(name: str, ok: bool, found: str, remedy: str = "") -> dict[str, Any]:
    return {"name": name, "ok": ok, "found": found, "remedy": remedy}


def _isolation(isolation: Isolation) -> dict[str, Any]:
    found = f"{isolation.level}; own: {', '.join(isolation.separated)}; shared: {', '.join(isolation.shared)}"
    if isolation.missing:
        found += f"; missing: {isolation.missing}"
    return _check("process runtime", isolation.level != "plain", found, isolation.remedy)


def _limits(grants: Grants) -> dict[str, Any]:
    held = [f"{LIMITED[name]} (version {grants.places[name][0]})" for name in LIMITED if name in grants.places]
    found = f"control groups: {', '.join(held) or 'none'}"
    if grants.places_refused:
        found += "; rlimits for the rest: " + "; ".join(f"{name}: {why}" for name, why in grants.places_refused.items())
    return _check("limits", not grants.places_refused, found, grants.places_remedy)


def _socket_paths() -> dict[str, Any]:
    folder = Path(tempfile.gettempdir())
    length = len(str(folder).encode()) + FOLDER_BYTES
    ok = length <= SOCKET_PATH_LIMIT_BYTES
    remedy = "" if ok else "export TMPDIR=/tmp"
    return _check("socket paths", ok, f"{length} of {SOCKET_PATH_LIMIT_BYTES} bytes under {folder}", remedy)


def _descriptors() -> dict[str, Any]:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    ok = soft == resource.RLIM_INFINITY or soft >= DESCRIPTORS_FOR_200_SANDBOXES
    found = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    return _check("open files", ok, found, "" if ok else f"ulimit -n {DESCRIPTORS_FOR_200_SANDBOXES}")
