"""What the process runtime does to a process before sandboxed code runs in it.

Standard library only, Linux only, loaded by path in the forkserver. `enter_namespaces` must be
called in a process with one thread; the caller then forks, and the child calls `build_root`.
After `drop_privileges` the process owns nothing it could undo this with.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import shutil
import socket
import stat
import struct
from collections.abc import Collection
from typing import Any

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 24, 36, 38
SYS_MOUNT_SETATTR = 442
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
AT_RECURSIVE = 0x8000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
FICLONE = 0x40049409
CAPABILITY_VERSION_3 = 0x20080522
INSIDE_ID = 1000
FIRST = -20
SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/localtime",
)
TERMINALS = 64
DEVICES = ("null", "zero", "full", "random", "urandom")

INODE_BYTES = 4096
"""Memory-backed folders hold one file per so many bytes: empty files take memory too."""

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    done = _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _check(done, f"mount {source} on {target}")


def die_with_parent(signal_number: int) -> None:
    """The kernel sends this process the signal when its parent ends."""
    _check(_libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl(PDEATHSIG)")


def adopt_orphans() -> None:
    """Descendants whose parent ended become children of this process."""
    _check(_libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(CHILD_SUBREAPER)")


def enter_namespaces(network: bool) -> None:
    """New user, mount, pid, ipc, uts and (unless `network`) network namespace; pid takes effect for children."""
    uid, gid = os.getuid(), os.getgid()
    flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS
    _check(_libc.unshare(flags | (0 if network else CLONE_NEWNET)), "unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{INSIDE_ID} {uid} 1"),
        ("gid_map", f"{INSIDE_ID} {gid} 1"),
    ):
        with open("/proc/self/" + name, "w") as file:
            file.write(text)


def _bind(source: str, target: str, writable: bool) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    _mount(source, target, "", MS_BIND | MS_REC)
    attributes = MOUNT_ATTR_NOSUID | (0 if writable else MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV)
    setting = struct.pack("QQQQ", attributes, 0, 0, 0)
    done = _libc.syscall(SYS_MOUNT_SETATTR, -1, target.encode(), AT_RECURSIVE, setting, len(setting))
    _check(done, f"mount_setattr on {target}")


def _outermost(paths: list[str]) -> list[str]:
    """The paths without those that lie in another one of them."""
    kept: list[str] = []
    for path in sorted(set(paths)):
        if not any(path == other or path.startswith(other.rstrip("/") + "/") for other in kept):
            kept.append(path)
    return kept


def _memory(target: str, size_bytes: int, mode: str) -> None:
    """A folder in memory that holds `size_bytes`."""
    files = max(1024, size_bytes // INODE_BYTES)
    _mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, f"mode={mode},size={size_bytes},nr_inodes={files}")


def overlay(lower: str, upper: str, work: str, target: str) -> None:
    """Show `lower` at `target`, with what is written there in `upper`; `work` is the kernel's own, beside `upper`.

    Raises:
        OSError: the kernel does not grant it to this user.
    """
    descriptors = [os.open(path, os.O_PATH) for path in (lower, upper, work)]
    try:
        # By descriptor: commas and colons in a path would be taken for separators.
        paths = [f"/proc/self/fd/{number}" for number in descriptors]
        options = "lowerdir={},upperdir={},workdir={},userxattr".format(*paths)
        _mount("overlay", target, "overlay", MS_NOSUID | MS_NODEV, options)
    finally:
        for number in descriptors:
            os.close(number)


def _working_folder(root: str, work: dict[str, Any]) -> None:
    """Mount the working directory below `root`: in memory or on disk, over a template or empty."""
    target = root + work["path"]
    os.makedirs(target, exist_ok=True)
    if not work["overlay"]:
        if work["on_disk"]:
            _bind(work["path"], target, writable=True)
        else:
            _memory(target, work["bytes"], "0755")
            if work["template"]:
                copy_folder(work["template"], target)
        return
    store = root + "/.store" if not work["on_disk"] else work["path"]
    if not work["on_disk"]:
        os.mkdir(store)
        _memory(store, work["bytes"], "0700")
    for name in ("upper", "work"):
        os.mkdir(f"{store}/{name}")
    shutil.copystat(work["template"], store + "/upper")
    overlay(work["template"], store + "/upper", store + "/work", target)
    if not work["on_disk"]:
        # The overlay keeps it; nobody inside can reach it any more.
        _check(_libc.umount2(store.encode(), MNT_DETACH), "umount of the overlay's store")
        os.rmdir(store)


def build_root(root: str, work: dict[str, Any], readable: list[str], scratch_bytes: int) -> None:
    """Make `root` the file system: system folders and `readable` read-only, working directory and /tmp writable.

    `work`: `path`, `bytes`, `on_disk`, `template` (or ""), `overlay` (whether it is to be mounted or copied).
    """
    _mount("none", "/", "", MS_REC | MS_PRIVATE)
    _mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=1m")
    visible = []
    for path in SYSTEM:
        if os.path.islink(path):
            os.makedirs(root + os.path.dirname(path), exist_ok=True)
            os.symlink(os.readlink(path), root + path)
        elif os.path.exists(path):
            visible.append(path)
    for path in readable:
        visible += [path, os.path.realpath(path)]
    for path in ("/tmp", "/dev/shm"):
        os.makedirs(root + path, exist_ok=True)
        _memory(root + path, scratch_bytes, "1777")
    for path in _outermost(visible):
        _bind(path, root + path, writable=False)
    _working_folder(root, work)
    for name in DEVICES:
        _bind("/dev/" + name, root + "/dev/" + name, writable=True)
    os.mkdir(root + "/dev/pts")
    # Terminals of its own, for shells and for programs that drive others through one.
    options = f"newinstance,ptmxmode=0666,mode=0600,max={TERMINALS}"
    _mount("devpts", root + "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, options)
    links = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
    for name, target in links.items():
        os.symlink(target, root + "/dev/" + name)
    with open(root + "/etc/passwd", "w") as file:
        file.write("sandbox:x:{0}:{0}::{1}:/bin/sh\n".format(INSIDE_ID, work["path"]))
    os.makedirs(root + "/proc")
    _mount("proc", root + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    _pivot(root)


def _pivot(root: str) -> None:
    os.chdir(root)
    number = SYS_PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(f"pivot_root: no system call number known for {os.uname().machine}")
    _check(_libc.syscall(number, b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", MNT_DETACH), "umount of the old root")
    os.chdir("/")
    # Read-only from here on: nobody fills the root or plants files beside the mounts.
    setting = struct.pack("QQQQ", MOUNT_ATTR_RDONLY, 0, 0, 0)
    _check(_libc.syscall(SYS_MOUNT_SETATTR, -1, b"/", 0, setting, len(setting)), "mount_setattr on /")


def raise_loopback() -> None:
    """Bring up `lo`, so that programs inside can talk to themselves."""
    siocsifflags, iff_up_running = 0x8914, 0x1 | 0x40
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, siocsifflags, struct.pack("16sH14s", b"lo", iff_up_running, b""))


def forbid_user_namespaces() -> None:
    """None to gain privileges in, for all of this user namespace."""
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")


def drop_privileges() -> None:
    """No capabilities and none to be had by exec.

    That other processes cannot look into this one is the agent's own first step: it opens a file of its process
    before, and outside a user namespace the kernel would give that file to root.
    """
    for capability in range(64):
        if _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(NO_NEW_PRIVS)")
    header, nothing = struct.pack("Ii", CAPABILITY_VERSION_3, 0), bytes(24)
    _check(_libc.capset(header, nothing), "capset")


def limit(resources: dict[str, Any], grouped: Collection[str], count_processes: bool) -> None:
    """rlimits; `grouped` are the controllers that limit the sandbox as a whole, which is better.

    The number of processes is counted per user namespace, so that it is only set inside of one.
    """
    wanted = [(resource.RLIMIT_NOFILE, resources["open_files"]), (resource.RLIMIT_FSIZE, resources["file_bytes"])]
    wanted.append((resource.RLIMIT_CORE, 0))
    if resources["memory_bytes"] is not None and "memory" not in grouped:
        wanted.append((resource.RLIMIT_AS, resources["memory_bytes"]))
    if count_processes and resources["processes"] is not None and "pids" not in grouped:
        wanted.append((resource.RLIMIT_NPROC, resources["processes"]))
    for kind, value in wanted:
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def rank_first() -> None:
    """Take the highest priority, if this process may: the agent keeps it, what the agent starts does not get it.

    For sandboxes with a share of cpu of their own, in which nobody else competes with it.
    """
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, FIRST)


def _clone(source: str, target: str) -> str:
    """Copy a file, sharing its blocks where the file system can (FICLONE)."""
    if not stat.S_ISREG(os.lstat(source).st_mode):
        raise OSError(f"{source} is no file, folder or link")
    with open(source, "rb") as old, open(target, "wb") as new:
        try:
            fcntl.ioctl(new, FICLONE, old.fileno())
        except OSError:
            shutil.copyfileobj(old, new, 1 << 20)
    shutil.copystat(source, target)
    return target


def copy_folder(source: str, target: str) -> None:
    """Fill `target`, which exists, with the content of `source`; links stay links.

    Raises:
        OSError: something cannot be read, is neither file, folder nor link, or does not fit.
    """
    try:
        shutil.copytree(source, target, symlinks=True, copy_function=_clone, dirs_exist_ok=True)
    except shutil.Error as error:
        number = len(error.args[0])
        raise OSError(f"{number} entries of {source} could not be copied, the first: {error.args[0][0][2]}") from None
