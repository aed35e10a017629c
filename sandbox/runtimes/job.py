"""What a forkserver is told of the sandbox that it shall make."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import rocknroll
from rocknroll.sandbox.errors import SpecInvalid
from rocknroll.sandbox.runtimes.forklink import inherited_variables
from rocknroll.sandbox.runtimes.grants import Grants
from rocknroll.sandbox.runtimes.jail import INSIDE_ID, SYSTEM
from rocknroll.sandbox.spec import SandboxSpec

DEFAULT_MEMORY_BYTES = 2 << 30
"""Of a whole sandbox, where control groups limit it: as in Docker."""
_AGENT = Path(__file__).resolve().parent.parent / "agent"


def package_paths() -> tuple[Path, list[Path]]:
    """The folder to import this package from, and all folders its files lie in (it may be links)."""
    package = Path(rocknroll.__file__).parent
    return package.parent, [package, *(part.resolve() for part in package.iterdir() if part.is_symlink())]


def check(spec: SandboxSpec) -> None:
    """Refuse what the process runtime can never do.

    Raises:
        SpecInvalid: the specification is for Docker, its template is no folder, or its memory-backed folders alone
            could use up its memory.
    """
    if spec.image:
        raise SpecInvalid(f"the process runtime has no images, the spec names {spec.image!r}; use the Docker runtime")
    if spec.network == "bridge":
        raise SpecInvalid("network 'bridge' is Docker's; with the process runtime it is 'none' or 'host'")
    if spec.template is not None and not spec.template.is_dir():
        raise SpecInvalid(f"the template {spec.template} is not a folder")
    if spec.bare:
        _check_bare()
    resources = spec.resources
    folders = 2 * resources.scratch_bytes + (0 if spec.writable_root else resources.work_bytes)
    if resources.memory_bytes is not None and folders > resources.memory_bytes:
        raise SpecInvalid(
            f"/tmp, /dev/shm and the working directory may hold {folders} bytes in memory, more than the "
            f"memory_bytes={resources.memory_bytes} of the sandbox: files could leave nothing for commands; "
            "lower scratch_bytes or work_bytes, or set writable_root for a working directory on disk"
        )


def _check_bare() -> None:
    shown = [Path(sys.base_prefix), *map(Path, SYSTEM)]
    for folder in package_paths()[1]:
        if any(folder.resolve().is_relative_to(place.resolve()) for place in shown):
            raise SpecInvalid(
                f"bare: this package lies in {folder}, which every process sandbox sees with the system's files; "
                "install it in a virtual environment, or use the Docker runtime"
            )


def build(
    spec: SandboxSpec, instance_id: str, folder: Path, group: str, secret: str, floor: int, grants: Grants, wrap: str
) -> dict[str, Any]:
    """The request; `wrap` is the bubblewrap program."""
    workdir = folder / "work"
    importable, package = package_paths()
    extra = [] if spec.bare else [importable, *(spec.env.python_path if spec.env else ())]
    python = Path(sys.executable).resolve() if spec.bare else Path(sys.executable)
    shown = [Path(sys.base_prefix), _AGENT] if spec.bare else [Path(sys.prefix), Path(sys.base_prefix), *package]
    variables = {
        **inherited_variables(),
        "HOME": str(workdir),
        "ROCKNROLL_SANDBOX": instance_id,
        **({"PYTHONPATH": os.pathsep.join(str(path.absolute()) for path in extra)} if extra else {}),
        **spec.variables,
    }
    readable = [str(path.absolute()) for path in (*shown, *extra[1:], *spec.readable) if path.exists()]
    resources = spec.resources.model_dump()
    template = "" if spec.template is None else str(spec.template.absolute())
    work = {
        "path": str(workdir),
        "bytes": spec.resources.work_bytes,
        "template": template,
        "overlay": bool(template) and grants.overlay,
        "on_disk": spec.writable_root or grants.level == "plain" or (bool(template) and grants.level == "bubblewrap"),
    }
    return {
        "instance": instance_id,
        "spec": spec.fingerprint,
        "level": grants.level,
        "folder": str(folder),
        "work": work,
        "root": str(folder / "root"),
        "socket": str(folder / "agent.sock"),
        "log": str(folder / "log"),
        "readable": readable,
        "network": spec.network == "host",
        "resources": resources,
        "limits": {**resources, "memory_bytes": resources["memory_bytes"] or DEFAULT_MEMORY_BYTES},
        "places": dict(grants.places),
        "group": group,
        "bubblewrap": _bubblewrap(wrap, spec, work, readable, python) if grants.level == "bubblewrap" else [],
        "agent": {
            "workdir": str(workdir),
            "variables": variables,
            "token": floor,
            "secret": secret,
            "roots": list(spec.roots),
        },
    }


def _bubblewrap(
    program: str, spec: SandboxSpec, work: Mapping[str, Any], readable: Iterable[str], python: Path
) -> list[str]:
    """The command that becomes the agent; the descriptor of its configuration is to be added."""
    scratch, identity = str(spec.resources.scratch_bytes), str(INSIDE_ID)
    command = [program, "--unshare-user", "--disable-userns", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    command += [] if spec.network == "host" else ["--unshare-net"]
    command += ["--die-with-parent", "--as-pid-1", "--cap-drop", "ALL", "--uid", identity, "--gid", identity]
    command += ["--proc", "/proc", "--dev", "/dev"]
    for path in ("/tmp", "/dev/shm"):
        command += ["--size", scratch, "--perms", "1777", "--tmpfs", path]
    for path in (*SYSTEM, *readable):
        if path in SYSTEM and Path(path).is_symlink():
            command += ["--symlink", str(Path(path).readlink()), path]
        else:
            command += [part for place in {path, os.path.realpath(path)} for part in ("--ro-bind-try", place, place)]
    if work["on_disk"]:
        command += ["--bind", work["path"], work["path"]]
    else:
        command += ["--size", str(work["bytes"]), "--tmpfs", work["path"]]
    # Nobody fills the root or plants files beside the mounts.
    command += ["--chdir", work["path"], "--remount-ro", "/dev", "--remount-ro", "/"]
    return [*command, "--", str(python), "-I", "-S", str(_AGENT)]
