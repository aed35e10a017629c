"""What the kernel grants the process runtime here, in the terms that `rock doctor` shows."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rocknroll.sandbox.runtimes.base import Isolation

Level = Literal["namespaces", "bubblewrap", "plain"]
Limits = Literal["groups", "rlimits"]
PROBE_TIMEOUT_S = 10.0
SEPARATED: Mapping[Level, tuple[str, ...]] = {
    "namespaces": ("processes", "files", "network", "ipc", "privileges"),
    "bubblewrap": ("processes", "files", "network", "ipc", "privileges"),
    "plain": ("process group", "privileges"),
}
SHARED: Mapping[Level, tuple[str, ...]] = {
    "namespaces": ("kernel",),
    "bubblewrap": ("kernel",),
    "plain": ("kernel", "processes", "files", "network", "ipc"),
}
LIMITED: Mapping[str, str] = {"memory": "memory", "pids": "number of processes", "cpu": "share of cpu"}


@dataclass(frozen=True)
class Grants:
    """What was tried and had, and the kernel's words for what was not."""

    level: Level
    refused: str = ""
    """Why there are no own namespaces."""
    overlay_refused: str = ""
    """Why working directories over a template are copied instead of shared."""
    places: Mapping[str, Any] = field(default_factory=dict)
    """Where control groups can be made, by controller (see `cgroup.find`)."""
    places_refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def overlay(self) -> bool:
        return self.level == "namespaces" and not self.overlay_refused

    @property
    def isolation(self) -> Isolation:
        limited = tuple(LIMITED[name] for name in LIMITED if name in self.places)
        unlimited = tuple(LIMITED[name] for name in LIMITED if name not in self.places)
        missing = [f"own namespaces: {self.refused}"] if self.refused else []
        missing += [f"control group for {LIMITED[name]}: {why}" for name, why in self.places_refused.items()]
        if self.level == "namespaces" and self.overlay_refused:
            missing.append(f"copy-on-write working directories: {self.overlay_refused}")
        return Isolation(
            self.level,
            SEPARATED[self.level] + tuple("limit of " + name for name in limited),
            SHARED[self.level] + unlimited,
            "; ".join(missing),
            self._remedy(),
        )

    def _remedy(self) -> str:
        if self.refused and self.level != "bubblewrap":
            namespaces = Path("/proc/sys/user/max_user_namespaces")
            if not namespaces.exists():
                return "none: this kernel has no user namespaces"
            if namespaces.read_text().strip() == "0":
                return "sudo sysctl user.max_user_namespaces=10000"
            return "sudo apt-get install bubblewrap"
        return self.places_remedy

    @property
    def places_remedy(self) -> str:
        """What gives control groups to a user who has none."""
        if not self.places_refused or os.getuid() == 0:
            return ""
        if Path("/sys/fs/cgroup/cgroup.controllers").exists():
            return "systemd-run --user --scope -p Delegate=yes COMMAND"
        return "sudo COMMAND: version 1 of control groups is root's alone"


def bubblewrap_works(bubblewrap: str) -> bool:
    """Whether it may make namespaces for this user, and is new enough (0.8) to keep others from being made inside."""
    apart = ["--unshare-user", "--disable-userns", "--unshare-pid", "--unshare-net"]
    command = [bubblewrap, *apart, "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    done = subprocess.run(command, capture_output=True, timeout=PROBE_TIMEOUT_S, check=False)
    return done.returncode == 0
