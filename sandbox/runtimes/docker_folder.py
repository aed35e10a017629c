"""The host's side of containers: one folder per fleet, in it one per instance, named so that socket paths stay short.

`FLEET/program-HASH` is what runs inside, a copy that any user can read. `FLEET/SLOT/run` is mounted into the container:
it holds the agent's configuration (which it removes), its socket and its log. `FLEET/SLOT/owner` says who looks after
the container. All of it is closed to other users of the machine.
"""

from __future__ import annotations

import compileall
import hashlib
import json
import os
import py_compile
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rocknroll.sandbox.errors import RuntimeUnavailable, SpecInvalid

INSIDE = "/rock"
"""Where a container has what is ours."""
_SANDBOX = Path(__file__).resolve().parent.parent
_PROGRAM = _SANDBOX / "agent"
AGENT = f"{INSIDE}/program/{_PROGRAM.name}"
"""The agent's path inside: a folder with `__main__.py`."""
OUTPUT_TAIL_BYTES = 4096
_BOOT = Path(__file__).with_name("docker_boot.py")


@cache
def _program_name() -> str:
    """Changes with the program's content: containers that still run keep the version they started with."""
    content = b"\0".join(path.read_bytes() for path in (_BOOT, *sorted(_PROGRAM.rglob("*.py"))))
    return f"program-{hashlib.sha256(content).hexdigest()[:12]}"


@dataclass(frozen=True)
class InstanceFolder:
    """The folder of one instance."""

    root: Path

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def socket(self) -> Path:
        return self.run / "agent.sock"

    @property
    def program(self) -> Path:
        """Shared by the instances of a fleet."""
        return self.root.parent / _program_name()

    def make(self, config: Mapping[str, Any], owner: str) -> None:
        """Create it, with what the agent is to read once."""
        # As root the agent owns the files; else it has this process's group, and nobody else passes the fleet's folder.
        shared = os.getuid() != 0
        self.root.mkdir(mode=0o700)
        self.run.mkdir()
        self.run.chmod(0o770 if shared else 0o700)
        self.claim(owner)
        path = self.run / "config.json"
        path.touch(mode=0o600)
        path.chmod(0o640 if shared else 0o600)
        path.write_text(json.dumps(config), encoding="utf-8")

    def claim(self, owner: str) -> None:
        """Note who looks after the instance from now on; its label cannot change."""
        path = self.root / "owner"
        path.with_suffix(".new").write_text(owner, encoding="utf-8")
        path.with_suffix(".new").replace(path)

    def owner(self) -> str:
        """Who looks after the instance; empty when the folder is gone or nobody said."""
        try:
            return (self.root / "owner").read_text(encoding="utf-8")
        except OSError:
            return ""

    def log_tail(self) -> str:
        """The last of what the agent printed. The sandbox may have put anything in the log's place."""
        try:
            fd = os.open(self.run / "log", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return ""
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return ""
            file.seek(max(0, os.fstat(fd).st_size - OUTPUT_TAIL_BYTES))
            return file.read(OUTPUT_TAIL_BYTES).decode(errors="replace").strip()

    def listens(self) -> bool:
        """Whether the agent's socket is there, and is one."""
        try:
            return stat.S_ISSOCK(self.socket.lstat().st_mode)
        except OSError:
            return False

    def remove(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


class FleetFolder:
    """The folder of a fleet: the same path for every process that runs this fleet."""

    def __init__(self, fleet_id: str, parent: Path | None) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,23}", fleet_id):
            raise SpecInvalid(f"fleet id {fleet_id!r}: 1 to 24 letters, digits, - and _ are possible")
        self.path = (parent or Path(tempfile.gettempdir())).absolute() / f"rock-{os.getuid()}-{fleet_id}"

    def slot(self) -> InstanceFolder:
        """A folder for a new instance; nothing is made yet."""
        return InstanceFolder(self.path / secrets.token_hex(4))

    def make(self) -> None:
        """Create it if it is not there, with the program in it.

        Raises:
            RuntimeUnavailable: somebody else made it.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self.path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise RuntimeUnavailable(
                f"{self.path} is not a folder of this user that is closed to others; remove it, or set TMPDIR"
            )
        self._copy_program()

    def _copy_program(self) -> None:
        """A copy: a private installation may hold files that only its owner reads, and root inside is no superuser."""
        program = self.path / _program_name()
        if program.exists():
            return
        fresh = self.path / f"new.{secrets.token_hex(4)}"
        fresh.mkdir()
        shutil.copy(_BOOT, fresh)
        shutil.copytree(_PROGRAM, fresh / _PROGRAM.name, ignore=shutil.ignore_patterns("__pycache__"))
        # Used by an image's Python of the same version, a seventh of a start's time; by others ignored.
        compileall.compile_dir(fresh, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
        for path in (fresh, *fresh.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        try:
            fresh.rename(program)
        except OSError:  # another start was quicker
            shutil.rmtree(fresh)


def slots(fleet: Path) -> list[InstanceFolder]:
    """Folders of instances in a fleet's folder."""
    if not fleet.is_dir():
        return []
    return [InstanceFolder(path) for path in fleet.iterdir() if re.fullmatch(r"[0-9a-f]{8}", path.name)]


def remove_if_empty(fleet: Path) -> None:
    """Remove a fleet's folder when no instance has one in it."""
    if fleet.is_dir() and not slots(fleet):
        shutil.rmtree(fleet, ignore_errors=True)
