"""The process that all sandboxes of one kind are forked from: `forkserver.py` with a socket as fd 0.

It imports the agent, and the environment's module, once; a sandbox is then two forks (milliseconds,
memory shared copy-on-write) instead of an interpreter start. It speaks JSON messages over a
SOCK_SEQPACKET socket with `forklink.py`: replies carry the request's id, `exited` comes unasked. When
its owner goes, however that happens, it kills every sandbox, removes the folder, and ends; with
`durable_s` it first waits so long for a successor. Sandboxes die with it in turn (PR_SET_PDEATHSIG).
Standard library only.
"""

from __future__ import annotations

import contextlib
import gc
import hmac
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
GREETING_S = 1.0
"""A successor says who it is within this time, or is turned away."""


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
cgroup, jail, outlet, probe, spawn = (
    load("rocknroll_" + name, os.path.join(_HERE, name + ".py"))
    for name in ("cgroup", "jail", "outlet", "probe", "spawn")
)


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


class Sandbox:
    """What the forkserver knows of one sandbox."""

    def __init__(self, pid: int, request: dict[str, Any], output: Any, report: int) -> None:
        self.pid, self.output = pid, output
        self.groups: dict[str, str] = request["groups"]
        self.request_id = int(request["id"])
        self.report = report
        """Reading end of what the fork tells of its own making; -1 once it stands."""
        self.said = b""
        self.facts = {name: request[name] for name in ("instance", "spec", "folder")}
        self.facts.update(pid=pid, secret=request["agent"]["secret"])


class ForkServer:
    """Spawns, reaps and kills; one per owner and kind of sandbox."""

    def __init__(self) -> None:
        self._channel: socket.socket | None = None
        self._folder = self._secret = ""
        self._durable_s = self._alone_until_s = 0.0
        self._door: socket.socket | None = None
        self._succeeded = False
        self._sandboxes: dict[int, Sandbox] = {}
        self._remains: list[dict[str, str]] = []
        """Groups of dead sandboxes that the kernel still held at the time."""
        self._poll = select.poll()
        self._signals, wakeup = os.pipe()
        for number in (self._signals, wakeup):
            os.set_blocking(number, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTERM, lambda number, frame: self._end())
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def run(self, channel: socket.socket, durable: bool) -> None:
        """Serve until the owner's end of the socket closes, and nobody succeeds it in time."""
        if not durable:
            jail.die_with_parent(signal.SIGTERM)
        jail.adopt_orphans()
        self._channel = channel
        for number in (channel.fileno(), self._signals):
            self._poll.register(number, select.POLLIN)
        while True:
            ready = {number for number, _ in self._poll.poll(self._wait_ms())}
            now_s = time.monotonic()
            if self._channel is not None and self._channel.fileno() in ready:
                self._hear(self._channel)
            for sandbox in list(self._sandboxes.values()):
                if sandbox.output.reader in ready:
                    self._drain(sandbox, now_s)
                elif sandbox.output.resume_s and now_s >= sandbox.output.resume_s:
                    sandbox.output.resume_s = 0.0
                    self._poll.register(sandbox.output.reader, select.POLLIN)
                if sandbox.report in ready:
                    self._made(sandbox)
            if self._signals in ready:
                os.read(self._signals, 4096)
                self._reap()
            if self._door is not None and self._door.fileno() in ready:
                self._admit(self._door)
            self._end_if_nobody_came(now_s)

    def _wait_ms(self) -> float | None:
        """Until something is due by the clock."""
        due_s = [sandbox.output.resume_s for sandbox in self._sandboxes.values() if sandbox.output.resume_s]
        if self._channel is None:
            due_s.append(self._alone_until_s)
        return max(0.0, min(due_s) - time.monotonic()) * 1e3 + 1.0 if due_s else None

    def _hear(self, channel: socket.socket) -> None:
        try:
            message = channel.recv(MESSAGE_BYTES)
        except OSError:
            message = b""
        if message:
            self._handle(json.loads(message))
        else:
            self._orphaned()

    def _orphaned(self) -> None:
        """The owner is gone: end, or wait for its successor."""
        if self._channel is None:
            return
        self._poll.unregister(self._channel.fileno())
        self._channel.close()
        self._channel = None
        if not self._durable_s or not self._sandboxes:
            self._end()
        self._alone_until_s = time.monotonic() + self._durable_s

    def _end_if_nobody_came(self, now_s: float) -> None:
        if self._channel is None and now_s >= self._alone_until_s:
            self._end()

    def _admit(self, door: socket.socket) -> None:
        """Someone knocks: with the secret, and while there is no owner, they are the new one."""
        guest, _ = door.accept()
        guest.settimeout(GREETING_S)
        try:
            greeting = json.loads(guest.recv(MESSAGE_BYTES))
            if not hmac.compare_digest(str(greeting.get("secret")), self._secret):
                guest.close()
                return
            if self._channel is not None:
                guest.send(
                    json.dumps({"id": greeting["id"], "error": "another process holds these sandboxes"}).encode()
                )
                guest.close()
                return
        except (OSError, ValueError, KeyError):
            guest.close()
            return
        guest.settimeout(None)
        self._channel, self._succeeded = guest, True
        self._poll.register(guest.fileno(), select.POLLIN)
        facts = [sandbox.facts for sandbox in self._sandboxes.values()]
        self._tell({"id": greeting["id"], "sandboxes": facts})
        self._leave_if_done()

    def _handle(self, request: dict[str, Any]) -> None:
        try:
            reply = getattr(self, "_do_" + request["op"])(request)
        except OSError as error:
            reply = {"error": "{}: {}".format(request["op"], error)}
        if reply is not None:
            self._tell({"id": request["id"], **reply})

    def _do_hello(self, request: dict[str, Any]) -> dict[str, Any]:
        """Import what sandboxes need; open the door for a successor if there may be one."""
        self._folder, self._secret = request["folder"], request["secret"]
        self._durable_s = request["durable_s"]
        if self._durable_s:
            self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._door.bind(self._folder + "/door.sock")
            os.chmod(self._folder + "/door.sock", 0o600)
            self._door.listen(4)
            self._poll.register(self._door.fileno(), select.POLLIN)
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
        """What the kernel grants: namespaces, copy-on-write folders in them, control groups."""
        return {**probe.namespaces(jail, request["folder"]), "groups": cgroup.find()}

    def _do_spawn(self, request: dict[str, Any]) -> None:
        """Fork one sandbox; the answer comes when it stands, and then its socket listens."""
        os.makedirs(request["work"]["path"])
        os.makedirs(request["root"], exist_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(request["socket"])
        os.chmod(request["socket"], 0o600)
        listener.listen(8)
        output = outlet.Outlet(request["log"])
        report, ours = os.pipe()
        try:
            request["groups"] = cgroup.create(request["places"], request["group"], request["limits"])
        except OSError:
            output.close(time.monotonic())
            os.close(report)
            raise
        else:
            pid = os.fork()
            if pid == 0:
                spawn.Spawn(request, listener, ours, jail, cgroup, agent.serve).become(output.writer)
        finally:
            for number in (output.writer, ours):
                os.close(number)
            listener.close()
        self._sandboxes[pid] = Sandbox(pid, request, output, report)
        for number in (output.reader, report):
            self._poll.register(number, select.POLLIN)

    def _made(self, sandbox: Sandbox) -> None:
        """The fork says how its making goes, and closes its end when that is over."""
        said = os.read(sandbox.report, 1 << 16)
        sandbox.said += said
        if said:
            return
        self._poll.unregister(sandbox.report)
        os.close(sandbox.report)
        sandbox.report = -1
        if sandbox.said == spawn.STANDS:
            self._tell({"id": sandbox.request_id, "pid": sandbox.pid})

    def _do_kill(self, request: dict[str, Any]) -> dict[str, Any]:
        """Start ending a sandbox; `exited` follows once nothing is left of it."""
        if request["pid"] in self._sandboxes:
            os.kill(request["pid"], signal.SIGKILL if request["hard"] else signal.SIGTERM)
        return {}

    def _do_end(self, request: dict[str, Any]) -> dict[str, Any]:
        self._end()
        return {}

    def _drain(self, sandbox: Sandbox, now_s: float) -> None:
        open_still = sandbox.output.drain(now_s)
        if not open_still or sandbox.output.resume_s:
            self._poll.unregister(sandbox.output.reader)

    def _reap(self) -> None:
        ended: list[tuple[Sandbox, int]] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid in self._sandboxes:
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                ended.append((self._sandboxes.pop(pid), code))
        if ended:
            self._kill_strays()
        for sandbox, code in ended:
            self._bury(sandbox, code)
        self._remains = [groups for groups in self._remains if not cgroup.remove(groups)]
        self._leave_if_done()

    def _bury(self, sandbox: Sandbox, code: int) -> None:
        """Everything of it is dead: keep its last words, tell of it, give back what it held."""
        while sandbox.report >= 0:
            self._made(sandbox)
        # Not polled any more if it printed too much just now, or closed its output before its end.
        with contextlib.suppress(KeyError):
            self._poll.unregister(sandbox.output.reader)
        sandbox.output.close(time.monotonic())
        killed = cgroup.out_of_memory(sandbox.groups)
        if not cgroup.remove(sandbox.groups):
            self._remains.append(sandbox.groups)
        if sandbox.said == spawn.STANDS:
            self._tell({"exited": sandbox.pid, "code": code, "out_of_memory": killed})
        else:
            said = sandbox.said.removeprefix(spawn.STANDS).decode(errors="replace")
            self._tell({"id": sandbox.request_id, "error": said or "it died while it was made"})

    def _leave_if_done(self) -> None:
        """A successor starts new sandboxes from a forkserver of its own, with its own code."""
        if self._succeeded and not self._sandboxes:
            self._end()

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
        if self._channel is None:
            return
        try:
            self._channel.sendall(json.dumps(message).encode())
        except (BrokenPipeError, ConnectionResetError):
            self._orphaned()

    def _end(self) -> None:
        """Leave nothing: no process, no group, no folder."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for pid in self._sandboxes:
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                continue
        until_s = time.monotonic() + KILL_WAIT_S
        groups = [*self._remains, *(sandbox.groups for sandbox in self._sandboxes.values())]
        while self._sandboxes:
            try:
                pid = os.waitpid(-1, os.WNOHANG)[0]
            except ChildProcessError:
                break
            self._sandboxes.pop(pid, None)
            if pid == 0:
                time.sleep(STRAY_PAUSE_S)
            if time.monotonic() > until_s:
                for left in self._sandboxes:
                    os.kill(left, signal.SIGKILL)
                until_s += KILL_WAIT_S
        self._kill_strays()
        for left_over in groups:
            cgroup.end(left_over)
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(0)


if __name__ == "__main__":
    ForkServer().run(socket.socket(fileno=os.dup(OWNER)), durable="durable" in sys.argv[1:])
