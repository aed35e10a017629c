"""The process that all sandboxes of one kind are forked from: `forkserver.py` with a socket as fd 0.

It imports the agent, and the environment's module, once; a sandbox is then two forks (milliseconds,
memory shared copy-on-write) instead of an interpreter start. It speaks JSON messages over a
SOCK_SEQPACKET socket with `process.py`: `hello`, `spawn` and `kill` are answered in order, `exited`
comes unasked. When its owner goes, however that happens, the socket ends: it kills every sandbox,
removes the folder, and ends. Sandboxes die with it in turn (PR_SET_PDEATHSIG). Standard library only.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
import traceback
from types import ModuleType
from typing import Any

MESSAGE_BYTES = 1 << 20
OWNER = 0
KILL_WAIT_S = 5.0
STRAY_PAUSE_S = 0.002


def load(name: str, path: str) -> ModuleType:
    """A module of this package by its file, a folder by its path: nothing of the package is imported for it."""
    inside = [path] if os.path.isdir(path) else None
    file = os.path.join(path, "__init__.py") if inside else path
    found = importlib.util.spec_from_file_location(name, file, submodule_search_locations=inside)
    if found is None or found.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    found.loader.exec_module(module)
    return module


_HERE = os.path.dirname(os.path.abspath(__file__))
load("rocknroll_agent", os.path.join(os.path.dirname(_HERE), "agent"))
agent = importlib.import_module("rocknroll_agent.server")
jail = load("rocknroll_jail", os.path.join(_HERE, "jail.py"))


def close_descriptors(keep: list[int]) -> None:
    """Only standard streams and `keep` stay open."""
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number > 2 and number not in keep:
            try:
                os.close(number)
            except OSError:
                continue


def children() -> list[int]:
    """Processes whose parent is this one."""
    found, me = [], os.getpid()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == me and fields[0] != b"Z":
                found.append(int(name))
    return found


def run_sandbox(job: dict[str, Any], listener: socket.socket) -> None:
    """Become the agent of a sandbox; returns only by an exception."""
    resources = job["resources"]
    isolated = job["level"] == "namespaces"
    if isolated:
        jail.build_root(job["root"], job["workdir"], job["readable"], resources["scratch_bytes"])
        if not job["network"]:
            jail.raise_loopback()
    else:
        jail.adopt_orphans()
    jail.limit(resources, count_processes=isolated)
    if isolated:
        jail.drop_privileges()
    else:
        jail.forbid_new_privileges()
    os.chdir(job["workdir"])
    agent.serve(listener, job["agent"])


def bubblewrap(job: dict[str, Any], listener: socket.socket) -> None:
    """Become bubblewrap, which becomes the agent; returns only by an exception."""
    jail.limit(job["resources"], count_processes=False)
    config = os.memfd_create("config", 0)
    job["agent"]["listener"] = listener.fileno()
    os.write(config, json.dumps(job["agent"]).encode())
    os.lseek(config, 0, os.SEEK_SET)
    for number in (config, listener.fileno()):
        os.set_inheritable(number, True)
    os.execv(job["bubblewrap"][0], [*job["bubblewrap"], str(config)])


def supervise(job: dict[str, Any], listener: socket.socket) -> int:
    """The first fork: enters the namespaces and waits for the agent, so that its end can be told apart."""
    jail.enter_namespaces(network=job["network"])
    inner = os.fork()
    if inner == 0:
        jail.die_with_parent(signal.SIGKILL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        run_sandbox(job, listener)
    listener.close()

    def end(number: int, frame: Any) -> None:
        os.kill(inner, signal.SIGKILL)

    # A namespace's first process is reaped only after all others in it are gone: waiting for it is waiting for all.
    signal.signal(signal.SIGTERM, end)
    status = os.waitpid(inner, 0)[1]
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


class ForkServer:
    """Spawns, reaps and kills; one per owner and kind of sandbox."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._folder = ""
        self._sandboxes: set[int] = set()
        self._signals, wakeup = os.pipe()
        for number in (self._signals, wakeup):
            os.set_blocking(number, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTERM, lambda number, frame: self._end())
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def run(self) -> None:
        """Serve until the owner's end of the socket closes."""
        jail.die_with_parent(signal.SIGTERM)
        jail.adopt_orphans()
        poll = select.poll()
        for number in (OWNER, self._signals):
            poll.register(number, select.POLLIN)
        while True:
            ready = {number for number, _ in poll.poll()}
            if self._signals in ready:
                os.read(self._signals, 4096)
                self._reap()
            if OWNER in ready:
                message = self._channel.recv(MESSAGE_BYTES)
                if not message:
                    self._end()
                self._handle(json.loads(message))

    def _handle(self, request: dict[str, Any]) -> None:
        try:
            reply = getattr(self, "_do_" + request["op"])(request)
        except OSError as error:
            reply = {"error": "{}: {}".format(request["op"], error)}
        self._tell(reply)

    def _do_hello(self, request: dict[str, Any]) -> dict[str, Any]:
        """Import what sandboxes need."""
        self._folder = request["folder"]
        sys.path[:0] = request["python_path"]
        os.environ.update(request["variables"])
        for name in request["preload"]:
            try:
                importlib.import_module(name)
            except BaseException as error:
                return {"error": f"import of {name} failed: {error!r}", "traceback": traceback.format_exc()}
        gc.collect()
        gc.freeze()
        return {"threads": len(os.listdir("/proc/self/task")), "pid": os.getpid()}

    def _do_probe(self, request: dict[str, Any]) -> dict[str, Any]:
        """Try namespaces in a child; the reply says why they are refused, or nothing."""
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                jail.enter_namespaces(network=False)
                inner = os.fork()
                if inner == 0:
                    try:
                        jail.build_root(request["root"], request["workdir"], [], 1 << 20)
                        jail.drop_privileges()
                    except BaseException as error:
                        os.write(writer, str(error).encode())
                    os._exit(0)
                os.waitpid(inner, 0)
            except BaseException as error:
                os.write(writer, str(error).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as file:
            refused = file.read().decode()
        return {"refused": refused}

    def _do_spawn(self, request: dict[str, Any]) -> dict[str, Any]:
        """Fork one sandbox; its socket listens before this returns."""
        os.makedirs(request["workdir"])
        os.makedirs(request["root"], exist_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(request["socket"])
        os.chmod(request["socket"], 0o600)
        listener.listen(8)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        pid = os.fork()
        if pid == 0:
            self._become(request, listener, log)
        os.close(log)
        listener.close()
        self._sandboxes.add(pid)
        return {"pid": pid}

    def _become(self, job: dict[str, Any], listener: socket.socket, log: int) -> None:
        status = 1
        try:
            jail.die_with_parent(signal.SIGKILL)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            close_descriptors([listener.fileno()])
            start = {"namespaces": supervise, "bubblewrap": bubblewrap, "plain": run_sandbox}[job["level"]]
            status = int(start(job, listener) or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _do_kill(self, request: dict[str, Any]) -> dict[str, Any]:
        """Start ending a sandbox; `exited` follows once nothing is left of it."""
        if request["pid"] in self._sandboxes:
            os.kill(request["pid"], signal.SIGKILL if request["hard"] else signal.SIGTERM)
        return {}

    def _reap(self) -> None:
        ended = {}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid in self._sandboxes:
                self._sandboxes.remove(pid)
                ended[pid] = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if ended:
            self._kill_strays()
        for pid, code in ended.items():
            self._tell({"exited": pid, "code": code})

    def _kill_strays(self) -> None:
        """Descendants of a dead sandbox were handed to this process: they are whatever it did not spawn."""
        until_s = time.monotonic() + KILL_WAIT_S
        while time.monotonic() < until_s:
            strays = [pid for pid in children() if pid not in self._sandboxes]
            if not strays:
                return
            for pid in strays:
                os.kill(pid, signal.SIGKILL)
            time.sleep(STRAY_PAUSE_S)
            for pid in strays:
                os.waitpid(pid, os.WNOHANG)

    def _tell(self, message: dict[str, Any]) -> None:
        try:
            self._channel.sendall(json.dumps(message).encode())
        except (BrokenPipeError, ConnectionResetError):
            self._end()

    def _end(self) -> None:
        """Leave nothing: no process, no folder."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for pid in self._sandboxes:
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                continue
        until_s = time.monotonic() + KILL_WAIT_S
        while self._sandboxes:
            try:
                pid = os.waitpid(-1, os.WNOHANG)[0]
            except ChildProcessError:
                break
            self._sandboxes.discard(pid)
            if pid == 0:
                time.sleep(STRAY_PAUSE_S)
            if time.monotonic() > until_s:
                for left in self._sandboxes:
                    os.kill(left, signal.SIGKILL)
                until_s += KILL_WAIT_S
        self._kill_strays()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(0)


if __name__ == "__main__":
    ForkServer(socket.socket(fileno=os.dup(OWNER))).run()
