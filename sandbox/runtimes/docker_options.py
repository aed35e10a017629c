"""From a specification to the body of the Engine API's `POST /containers/create`: pure, so that every flag is tested.

What a sandbox may not do is decided here and nowhere else. The agent is the container's first
process: it reaps what is orphaned, and the kernel lets nothing inside kill it.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rocknroll.sandbox.errors import SpecInvalid
from rocknroll.sandbox.runtimes.docker_folder import AGENT, INSIDE, InstanceFolder
from rocknroll.sandbox.runtimes.job import package_paths
from rocknroll.sandbox.spec import SandboxSpec

LABEL = "rocknroll."
FLEET, INSTANCE, SPEC, OWNER, NAMESPACE, FOLDER = (
    LABEL + name for name in ("fleet", "instance", "spec", "owner", "namespace", "folder")
)
PYTHON = ("python3",)
DEFAULT_MEMORY_BYTES = 2 << 30
MEMORY_FOR_PROCESSES_BYTES = 32 << 20
"""Memory-backed folders that are full must leave this much, or the kernel ends whatever runs next."""
CAPABILITIES = ("SETUID", "SETGID", "KILL", "SYS_NICE")
"""What the agent needs as root to run commands as another user, to end them, and to be quicker than they are. Commands
get none of it."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Docker's own default for images that set none."""
OUT_OF_MEMORY_SCORE = 500
"""When the whole machine runs out of memory, sandboxes go before their fleet."""
RESERVED = ("/proc", "/sys", "/dev", INSIDE)


def container(
    spec: SandboxSpec,
    image: Mapping[str, Any],
    folder: InstanceFolder,
    labels: Mapping[str, str],
    template: Path | None,
) -> dict[str, Any]:
    """The container of one instance. `image` is what the daemon says of it, `template` a tar to unpack at the start.

    Raises:
        SpecInvalid: the specification asks for what cannot be had or would end the sandbox at once.
    """
    check(spec, image)
    boot = [*PYTHON, "-I", "-S", f"{INSIDE}/program/docker_boot.py", AGENT]
    boot += [f"{INSIDE}/run/config.json", f"{INSIDE}/run/log", spec.user]
    boot += [f"{INSIDE}/template.tar", spec.workdir] if template else []
    return {
        "Image": image["Id"],
        "User": "0:0",
        "Entrypoint": boot,
        "Cmd": [],
        # Docker makes it where the image has none; as root's, which is right for root alone.
        "WorkingDir": spec.workdir if spec.user == "root" else "/",
        "Labels": dict(labels),
        "Healthcheck": {"Test": ["NONE"]},
        # A daemon that shuts down must not wait ten seconds for a process that ignores its wish.
        "StopSignal": "SIGKILL",
        "StopTimeout": 0,
        "NetworkDisabled": spec.network == "none",
        "HostConfig": _host(spec, folder, template),
    }


def _host(spec: SandboxSpec, folder: InstanceFolder, template: Path | None) -> dict[str, Any]:
    wanted = spec.resources
    memory_bytes = wanted.memory_bytes or DEFAULT_MEMORY_BYTES
    limits = {"nofile": wanted.open_files, "core": 0, "fsize": wanted.file_bytes}
    owner = os.getgid()
    return {
        "CapDrop": ["ALL"],
        "CapAdd": [] if spec.user == "root" else list(CAPABILITIES),
        "SecurityOpt": ["no-new-privileges"],
        "Privileged": False,
        "ReadonlyRootfs": not spec.writable_root,
        "NetworkMode": spec.network,
        "IpcMode": "private",
        "LogConfig": {"Type": "none", "Config": {}},
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
        "Memory": memory_bytes,
        "MemorySwap": memory_bytes,
        "OomScoreAdj": OUT_OF_MEMORY_SCORE,
        "NanoCpus": int(wanted.cpus * 1e9),
        "PidsLimit": wanted.processes or -1,
        "ShmSize": wanted.scratch_bytes,
        "Tmpfs": _memory_folders(spec),
        "Mounts": _mounts(spec, folder, template),
        "Ulimits": [{"Name": name, "Soft": value, "Hard": value} for name, value in limits.items()],
        # Without capabilities even root needs the file permissions of whoever made the folder.
        "GroupAdd": [str(owner)] if owner else [],
    }


def _memory_folders(spec: SandboxSpec) -> dict[str, str]:
    """tmpfs by path; /dev/shm is Docker's own."""
    # Commands are other users than the agent, and cannot pass this folder: whatever it holds, they do not reach it.
    folders = {INSIDE: "rw,nosuid,nodev,noexec,size=64k,mode=0700"}
    if spec.writable_root:
        return folders
    uid, gid = owner(spec)
    wanted = spec.resources
    folders["/tmp"] = f"rw,nosuid,nodev,exec,size={wanted.scratch_bytes},mode=1777"
    folders[spec.workdir] = f"rw,nosuid,nodev,exec,size={wanted.work_bytes},mode=0755,uid={uid},gid={gid}"
    return folders


def _mounts(spec: SandboxSpec, folder: InstanceFolder, template: Path | None) -> list[dict[str, Any]]:
    mounts = [_bind(folder.run, f"{INSIDE}/run", writable=True), _bind(folder.program, f"{INSIDE}/program")]
    if template:
        mounts.append(_bind(template, f"{INSIDE}/template.tar"))
    mounts += [_bind(path, str(path)) for path in visible(spec)]
    return mounts


def _bind(source: Path, target: str, writable: bool = False) -> dict[str, Any]:
    # What is mounted below the source stays outside: it would not be read-only.
    options = {"Propagation": "rprivate", "NonRecursive": True}
    return {
        "Type": "bind",
        "Source": str(source),
        "Target": target,
        "ReadOnly": not writable,
        "BindOptions": options,
    }


def visible(spec: SandboxSpec) -> list[Path]:
    """Host paths that the specification shows to the sandbox; with an environment, this package among them."""
    extra = (*package_paths()[1], *spec.env.python_path) if spec.env else ()
    return sorted({path.absolute() for path in (*spec.readable, *extra)})


def owner(spec: SandboxSpec) -> tuple[int, int]:
    """User and group that commands run as."""
    uid, _, gid = spec.user.partition(":")
    return (0, 0) if spec.user == "root" else (int(uid), int(gid))


def variables(spec: SandboxSpec, image: Mapping[str, Any], instance_id: str) -> dict[str, str]:
    """Environment of the commands. The agent gets it, not the container's configuration, which many can read."""
    given = dict(entry.partition("=")[::2] for entry in image["Config"].get("Env") or ())
    at_home = spec.user == "root" and spec.writable_root
    importable = [package_paths()[0], *spec.env.python_path] if spec.env else []
    extra = {"PYTHONPATH": os.pathsep.join(str(path.absolute()) for path in importable)} if importable else {}
    return {
        "LANG": "C.UTF-8",
        "PATH": PATH,
        **given,
        "HOME": "/root" if at_home else spec.workdir,
        "ROCKNROLL_SANDBOX": instance_id,
        **extra,
        **spec.variables,
    }


def check(spec: SandboxSpec, image: Mapping[str, Any]) -> None:
    """Refuse what Docker would take and what would then not work, or not hold.

    Raises:
        SpecInvalid: with what to change.
    """
    if spec.network == "host":
        raise SpecInvalid("network: host is for the process runtime; in Docker choose none or bridge")
    if spec.user != "root" and owner(spec)[0] == 0:
        raise SpecInvalid(f"user: {spec.user} is root; write root, which gives commands no capability")
    workdir = spec.workdir
    if posixpath.normpath(workdir) != workdir or workdir == "/":
        raise SpecInvalid(f"workdir: {workdir} is not a plain absolute path below /; /work is one")
    if any(workdir == path or workdir.startswith(path + "/") for path in RESERVED):
        raise SpecInvalid(f"workdir: {workdir} lies in a folder that the container needs itself; /work does not")
    for path in visible(spec):
        if not path.exists():
            raise SpecInvalid(f"readable: there is no {path} on this machine")
        if any(str(path) == place or str(path).startswith(place + "/") for place in RESERVED):
            raise SpecInvalid(f"readable: {path} would hide a folder that the container needs itself")
    _check_memory(spec)
    volumes = sorted(image["Config"].get("Volumes") or ())
    if volumes and not spec.writable_root:
        raise SpecInvalid(
            f"the image {spec.image} declares the volumes {', '.join(volumes)}, which are writable on the host's disk; "
            "set writable_root, or build the image without VOLUME"
        )


def _check_memory(spec: SandboxSpec) -> None:
    wanted = spec.resources
    memory_bytes = wanted.memory_bytes or DEFAULT_MEMORY_BYTES
    folders = {"/dev/shm": wanted.scratch_bytes}
    if not spec.writable_root:
        folders |= {"/tmp": wanted.scratch_bytes, spec.workdir: wanted.work_bytes}
    needed = sum(folders.values()) + MEMORY_FOR_PROCESSES_BYTES
    if needed > memory_bytes:
        sizes = ", ".join(f"{path} {size >> 20} MiB" for path, size in folders.items())
        raise SpecInvalid(
            f"resources: memory-backed folders ({sizes}) and {MEMORY_FOR_PROCESSES_BYTES >> 20} MiB for processes need "
            f"{needed} bytes, memory_bytes is {memory_bytes}; a full folder would end every command. "
            "Raise memory_bytes, or lower scratch_bytes and work_bytes"
        )
