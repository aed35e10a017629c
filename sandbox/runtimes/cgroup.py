"""What one sandbox may use of the machine as a whole: memory, processes and cpu, held by control groups.

Both versions of the kernel's interface; for each controller, the groups of sandboxes are made below
the first folder that lets us. Groups are named after the forkserver's folder, so that whoever finds
that folder later can end and remove them. Standard library only, loaded by path in the forkserver.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any

CONTROLLERS = ("memory", "pids", "cpu")
KEY_FILE = {
    1: {"memory": "memory.limit_in_bytes", "pids": "pids.max", "cpu": "cpu.cfs_quota_us"},
    2: {"memory": "memory.max", "pids": "pids.max", "cpu": "cpu.max"},
}
CPU_PERIOD_US = 100_000
KILL_WAIT_S = 5.0
PAUSE_S = 0.005
OPTIONAL = frozenset({"memory.memsw.limit_in_bytes", "memory.swap.max"})
"""Missing where the kernel does not account swap."""

Groups = dict[str, str]
"""Folder of a group by controller; in version 2 it is the same one for all."""


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _mounts(proc: str) -> list[tuple[str, str, str, list[str]]]:
    """Control group mounts: (kind, root, mount point, options)."""
    found = []
    with open(proc + "/mountinfo") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            fields, (kind, _, options) = before.split(), after.split()[:3]
            if kind in ("cgroup", "cgroup2"):
                found.append((kind, fields[3], fields[4], options.split(",")))
    return found


def _own(proc: str) -> dict[str, str]:
    """Path of this process's group by controller; the key of version 2 is empty."""
    own = {}
    with open(proc + "/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            for controller in controllers.split(","):
                own[controller] = path
    return own


def _inside(path: str, root: str, mount: str) -> str:
    """Folder of a group under a mount that may show a part of the tree only, as containers have it."""
    if root != "/" and (path + "/").startswith(root + "/"):
        path = path[len(root) :]
    folder = os.path.normpath(mount + "/" + path)
    return folder if os.path.isdir(folder) else mount


def _candidates(controller: str, proc: str) -> list[tuple[int, str]]:
    """(version, folder) where a group could be made, best first: below our own, so that our limits hold for it too."""
    own = _own(proc)
    for kind, root, mount, options in _mounts(proc):
        if kind == "cgroup" and controller in options:
            return [(1, _inside(own.get(controller, "/"), root, mount))]
    for kind, root, mount, _ in _mounts(proc):
        if kind == "cgroup2":
            folder = _inside(own.get("", "/"), root, mount)
            # A group with processes can have no children with limits; then a sibling, where that was delegated to us,
            # else the top, as container daemons do.
            return [
                (2, folder),
                *([(2, os.path.dirname(folder))] if os.getuid() and folder != mount else []),
                (2, mount),
            ]
    return []


def _try(version: int, folder: str, controller: str) -> str:
    """Why no limit of this kind is to be had below `folder`; empty when it is."""
    name = f"{folder}/rock-try-{os.getpid()}"
    try:
        if version == 2:
            with open(folder + "/cgroup.subtree_control") as file:
                enabled = file.read().split()
            if controller not in enabled:
                _write(folder + "/cgroup.subtree_control", "+" + controller)
        os.mkdir(name)
    except OSError as error:
        return str(error)
    try:
        if not os.access(f"{name}/{KEY_FILE[version][controller]}", os.W_OK):
            return f"{folder}: the {controller} controller is not enabled"
        return _try_entering(name)
    finally:
        os.rmdir(name)


def _try_entering(folder: str) -> str:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _write(folder + "/cgroup.procs", "0")
        except OSError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        refused = file.read()
    os.waitpid(pid, 0)
    return refused


def find(proc: str = "/proc/self") -> dict[str, Any]:
    """Where groups can be made: `places` (controller -> [version, folder]), and why not for the rest: `refused`."""
    places: dict[str, tuple[int, str]] = {}
    refused = {}
    for controller in CONTROLLERS:
        refused[controller] = "no control groups are mounted"
        for version, folder in _candidates(controller, proc):
            refused[controller] = _try(version, folder, controller)
            if not refused[controller]:
                places[controller] = (version, folder)
                break
    return {"places": places, "refused": {name: why for name, why in refused.items() if why}}


def _settings(version: int, controller: str, resources: dict[str, Any]) -> list[tuple[str, str]]:
    if controller == "memory":
        limit = str(resources["memory_bytes"])
        if version == 1:
            return [("memory.limit_in_bytes", limit), ("memory.memsw.limit_in_bytes", limit)]
        return [("memory.max", limit), ("memory.swap.max", "0")]
    if controller == "pids":
        return [("pids.max", "max" if resources["processes"] is None else str(resources["processes"]))]
    quota_us = max(1000, int(resources["cpus"] * CPU_PERIOD_US))
    if version == 1:
        return [("cpu.cfs_period_us", str(CPU_PERIOD_US)), ("cpu.cfs_quota_us", str(quota_us))]
    return [("cpu.max", f"{quota_us} {CPU_PERIOD_US}")]


def create(places: dict[str, Any], name: str, resources: dict[str, Any]) -> Groups:
    """Make the groups of one sandbox, limits set.

    Raises:
        OSError: the kernel refused; nothing is left of them.
    """
    groups: Groups = {}
    try:
        for controller, (version, folder) in places.items():
            group = f"{folder}/{name}"
            if group not in groups.values():
                os.mkdir(group)
            groups[controller] = group
            for file, text in _settings(version, controller, resources):
                if file not in OPTIONAL or os.path.exists(f"{group}/{file}"):
                    _write(f"{group}/{file}", text)
    except OSError:
        remove(groups)
        raise
    return groups


def doors(groups: Groups) -> list[int]:
    """Descriptors to put processes into the groups with, also when their folders cannot be seen any more."""
    return [os.open(folder + "/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for folder in sorted(set(groups.values()))]


def enter(groups_doors: list[int], pid: int = 0) -> None:
    """Put a process into them, this one by default, and close the doors; children that it starts later follow."""
    for door in groups_doors:
        os.write(door, str(pid).encode())
        os.close(door)


def out_of_memory(groups: Groups) -> int:
    """How many processes in it the kernel has killed at its memory limit."""
    for file in ("memory.oom_control", "memory.events"):
        with contextlib.suppress(OSError, KeyError), open(groups["memory"] + "/" + file) as lines:
            counts = dict(line.split() for line in lines)
            return int(counts.get("oom_kill", 0))
    return 0


def memory_bytes(groups: Groups) -> int:
    """What it uses now, the files in its memory-backed folders and the kernel's own share included."""
    version_1 = groups["memory"] + "/memory.usage_in_bytes"
    with open(version_1 if os.path.exists(version_1) else groups["memory"] + "/memory.current") as file:
        return int(file.read())


def processes(groups: Groups) -> list[int]:
    """Who is in it."""
    found = set()
    for folder in set(groups.values()):
        with contextlib.suppress(OSError), open(folder + "/cgroup.procs") as file:
            found |= {int(line) for line in file}
    # A process of another pid namespace reads as 0, which kill() takes for this process's own group.
    return sorted(found - {0})


def remove(groups: Groups) -> bool:
    """Remove the groups if nobody is in them any more; True when nothing of them is left."""
    for folder in set(groups.values()):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
    return not any(os.path.isdir(folder) for folder in groups.values())


def remains(places: dict[str, Any], prefix: str) -> list[Groups]:
    """The groups, by sandbox, that a forkserver which is gone left behind."""
    found: dict[str, Groups] = {}
    for controller, (_, folder) in places.items():
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                if name.startswith(prefix + "."):
                    found.setdefault(name, {})[controller] = f"{folder}/{name}"
    return list(found.values())


def end(groups: Groups) -> bool:
    """Kill whoever is in it, fork bombs included, and remove it; True when nothing is left."""
    until_s = time.monotonic() + KILL_WAIT_S
    while not remove(groups):
        if time.monotonic() > until_s:
            return False
        for pid in processes(groups):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(PAUSE_S)
    return True
