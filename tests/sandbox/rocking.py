"""Drives the real `rock` as a person would: as a process, with a state folder of its own."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rocknroll.sandbox.state_folder import StateFolder

COMMAND = [sys.executable, "-m", "rocknroll.sandbox.cli"]
TIMEOUT_S = 120.0


class Rock:
    """`rock(...)` runs one command on this state folder."""

    def __init__(self, state: Path) -> None:
        self.state = StateFolder(state)
        hidden = ("ROCK_STATE", "ROCK_URL", "ROCK_TOKEN")
        kept = {name: value for name, value in os.environ.items() if name not in hidden}
        self.environment: dict[str, str] = {**kept, "ROCK_STATE": str(state)}

    def __call__(
        self, *arguments: str, stdin: bytes = b"", variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*COMMAND, *arguments],
            input=stdin,
            capture_output=True,
            env={**self.environment, **(variables or {})},
            timeout=TIMEOUT_S,
            check=False,
        )
        out, err = (stream.decode(errors="replace") for stream in (done.stdout, done.stderr))
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def json(self, *arguments: str) -> dict[str, Any]:
        """The last line of stdout of a command that must succeed."""
        done = self(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result

    def background(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
            text=True,
        )

    def kill_manager(self) -> int:
        """As the kernel would: -9. Returns its pid."""
        pid = self.state.manager()
        assert pid is not None
        watching = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        select.select([watching], [], [], TIMEOUT_S)
        os.close(watching)
        return pid


def processes_mentioning(text: str) -> list[int]:
    """Pids of processes that have this in their command line, their working folder or an open file's path."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                links = [os.readlink(link) for link in (entry / "cwd", *(entry / "fd").iterdir())]  # noqa: PTH115
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if text.encode() in words or any(text in link for link in links):
                found.append(int(entry.name))
    return found
