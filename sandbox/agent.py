"""The program inside every sandbox: one file, standard library only, Python 3.9 or newer.

Serves framed requests over a Unix socket: `>II` lengths, a JSON header, a binary body. Requests
carry an id and are answered in any order, so that pings are answered while commands run and an
environment thinks. Requests also carry a fencing token, and one that is lower than the highest seen
is refused: a worker that was paused past its lease cannot write into a sandbox that someone else
holds now. One thread, callbacks only: nothing here waits for anything but the event loop.
"""

from __future__ import annotations

import sys

if "asyncio" not in sys.modules and "ssl" not in sys.modules:
    # asyncio then leaves TLS out, which nothing here needs: 4 MiB and a third of the start time less.
    sys.modules["ssl"] = None  # type: ignore[assignment]
    import asyncio

    del sys.modules["ssl"]
else:
    import asyncio
import contextlib
import errno
import json
import os
import signal
import socket
import stat
import struct
import subprocess
import time
from typing import TYPE_CHECKING, Any

VERSION = 1
PREFIX = struct.Struct(">II")
MAX_HEADER_BYTES = 1 << 20
MAX_BODY_BYTES = 1 << 24
DEFAULT_OUTPUT_BYTES = 1 << 18
"""Kept of each stream of a command: the first and the last half."""
PIPE_GRACE_S = 0.05
"""Wait for the rest of the output once a command ended but a child of it keeps the pipe open."""
KILL_ROUNDS = 100
KILL_PAUSE_S = 0.005
ORPHAN_CHECKS = 10
MARK = "ROCKNROLL_EXEC"


class Refused(Exception):
    """A request that is answered with an error of this kind."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def pack(header: bytes, body: bytes = b"") -> bytes:
    """One frame."""
    return PREFIX.pack(len(header), len(body)) + header + body


class Frames:
    """Cuts a byte stream into frames.

    Raises:
        Refused: a frame announces more bytes than allowed; the stream is unusable from there on.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """The frames that `data` completes, as (header, body)."""
        self._buffer += data
        buffer, frames, at = self._buffer, [], 0
        while len(buffer) - at >= PREFIX.size:
            header_bytes, body_bytes = PREFIX.unpack_from(buffer, at)
            if header_bytes > MAX_HEADER_BYTES or body_bytes > MAX_BODY_BYTES:
                raise Refused("protocol_error", f"frame of {header_bytes} + {body_bytes} bytes is too large")
            start = at + PREFIX.size
            end = start + header_bytes + body_bytes
            if len(buffer) < end:
                break
            frames.append((bytes(buffer[start : start + header_bytes]), bytes(buffer[start + header_bytes : end])))
            at = end
        if at:
            del buffer[:at]
        return frames


class HeadTail:
    """The first and the last `limit / 2` bytes of a stream, and how many were cut between them."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def feed(self, data: bytes) -> None:
        self._total += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 4 * self._half:
            del self._tail[: -self._half]

    def result(self) -> tuple[bytes, int]:
        """(kept bytes, bytes cut)."""
        tail = bytes(self._tail[-self._half :])
        return bytes(self._head) + tail, self._total - len(self._head) - len(tail)


if TYPE_CHECKING:
    from collections.abc import Callable

    Reply = Callable[[dict[str, Any], bytes], None]
    """Called once, with a header and a body."""
    Operation = Callable[[dict[str, Any], bytes, Reply, Reply], None]
    """Called with the request's header and body, and what to call on success and on failure."""


class Reaper:
    """Collects every child, orphans that were handed to this process included."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watched: dict[int, Callable[[int], None]] = {}
        loop.add_signal_handler(signal.SIGCHLD, self.reap)

    def watch(self, pid: int, ended: Callable[[int], None]) -> None:
        """Call `ended(exit code)` once; a negative code is the signal that killed it."""
        self._watched[pid] = ended

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            ended = self._watched.pop(pid, None)
            if ended is not None:
                ended(-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def marked_processes(mark: bytes) -> list[int]:
    """Processes whose environment carries the mark of one command."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        found.append(int(name))
            except OSError:
                continue
    return found


class Command:
    """One running command: reads its pipes, keeps head and tail, kills its process tree at the deadline."""

    def __init__(self, agent: Agent, request: dict[str, Any], stdin: bytes, reply: Reply) -> None:
        self._agent, self._reply, self._loop = agent, reply, agent.loop
        self.token = int(request["token"])
        self._mark = f"{MARK}={agent.next_command()}"
        limit = int(request.get("output_bytes", DEFAULT_OUTPUT_BYTES))
        self._sinks = (HeadTail(limit), HeadTail(limit))
        self._began_s = time.monotonic()
        self._timed_out = False
        self._exit_code: int | None = None
        self._replied = False
        self._process = self._spawn(request, stdin)
        self._open: dict[int, HeadTail] = {}
        for pipe, sink in ((self._process.stdout, self._sinks[0]), (self._process.stderr, self._sinks[1])):
            assert pipe is not None
            fd = os.dup(pipe.fileno())
            pipe.close()
            os.set_blocking(fd, False)
            self._open[fd] = sink
            self._loop.add_reader(fd, self._readable, fd)
        agent.reaper.watch(self._process.pid, self._ended)
        self._deadline = self._loop.call_later(float(request["timeout_s"]), self._expire)

    def _spawn(self, request: dict[str, Any], stdin: bytes) -> subprocess.Popen[bytes]:
        argv = [str(part) for part in request["argv"]]
        variables = dict(self._agent.variables)
        variables.update(request.get("variables") or {})
        name, _, value = self._mark.partition("=")
        variables[name] = value
        source = os.memfd_create("stdin")
        try:
            os.write(source, stdin)
            os.lseek(source, 0, os.SEEK_SET)
            return subprocess.Popen(
                argv,
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self._agent.path(request.get("cwd") or "."),
                env=variables,
                start_new_session=True,
                **self._agent.user,
            )
        except (OSError, ValueError) as error:
            raise Refused("exec_failed", f"cannot run {argv[:1]!r}: {error}") from None
        finally:
            os.close(source)

    def _readable(self, fd: int) -> None:
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            if not self._replied:
                self._open[fd].feed(data)
            return
        self._loop.remove_reader(fd)
        os.close(fd)
        del self._open[fd]
        if not self._open and self._exit_code is not None:
            self._finish()

    def _ended(self, exit_code: int) -> None:
        self._exit_code = self._process.returncode = exit_code
        if not self._open:
            self._finish()
        else:
            # A background child holds the pipe. What it prints later is read and dropped.
            self._loop.call_later(PIPE_GRACE_S, self._finish)

    def _expire(self) -> None:
        self._timed_out = True
        self.kill()

    def kill(self) -> None:
        """Kill everything the command started, new sessions and orphans included."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._kill_round(KILL_ROUNDS)

    def _kill_round(self, rounds: int) -> None:
        found = marked_processes(self._mark.encode())
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if found and rounds:
            self._loop.call_later(KILL_PAUSE_S, self._kill_round, rounds - 1)

    def _finish(self) -> None:
        if self._replied:
            return
        self._replied = True
        self._deadline.cancel()
        self._agent.commands.discard(self)
        (stdout, stdout_cut), (stderr, stderr_cut) = self._sinks[0].result(), self._sinks[1].result()
        self._reply(
            {
                "exit_code": self._exit_code,
                "timed_out": self._timed_out,
                "stdout_bytes": len(stdout),
                "stdout_cut": stdout_cut,
                "stderr_cut": stderr_cut,
                "wall_s": round(time.monotonic() - self._began_s, 6),
            },
            stdout + stderr,
        )


class HostLink(asyncio.Protocol):
    """The agent's end of the socket to the environment's process."""

    def __init__(self, env: EnvHost) -> None:
        self._env = env
        self._frames = Frames()

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._frames.feed(data)
        except Refused as refused:
            self._env.end("env_crashed", f"its process broke the protocol: {refused}")
            return
        for status, body in frames:
            self._env.answered(status, body)

    def connection_lost(self, exc: Exception | None) -> None:
        self._env.end("env_crashed", "its process died")


class EnvHost:
    """The environment's process. Bodies pass through unread; requests are served one after another."""

    def __init__(self, agent: Agent, request: dict[str, Any]) -> None:
        self._agent = agent
        self._pending: list[tuple[bytes, float, Reply, Reply]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._early: list[bytes] = []
        self._transport: Any = None
        self.over = ""
        ours, theirs = socket.socketpair()
        try:
            self.pid = self._spawn(request, theirs)
        finally:
            theirs.close()
        agent.reaper.watch(self.pid, self._died)
        ours.setblocking(False)
        self._connecting = agent.loop.create_task(self._connect(ours))

    async def _connect(self, ours: socket.socket) -> None:
        self._transport, _ = await self._agent.loop.create_connection(lambda: HostLink(self), sock=ours)
        for frame in self._early:
            self._transport.write(frame)
        self._early.clear()

    def _spawn(self, request: dict[str, Any], theirs: socket.socket) -> int:
        module = sys.modules.get(str(request["module"]))
        if module is None:
            argv = [*request["argv"], str(theirs.fileno())]
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=2,
                cwd=self._agent.workdir,
                env=self._agent.variables,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                **self._agent.user,
            )
            process.returncode = 0  # The reaper collects it; Popen must not.
            return process.pid
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                status = self._serve_forked(module, theirs)
            finally:
                os._exit(status)
        return pid

    def _serve_forked(self, module: Any, theirs: socket.socket) -> int:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        os.chdir(self._agent.workdir)
        os.environ.clear()
        os.environ.update(self._agent.variables)
        keep = theirs.fileno()
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) != keep:
                try:
                    os.close(int(name))
                except OSError:
                    continue
        return int(module.serve(keep))

    def ask(self, body: bytes, timeout_s: float, reply: Reply, fail: Reply) -> None:
        """Queue one request; its deadline runs from when the environment starts on it."""
        if self.over:
            fail({"kind": "env_crashed", "message": "there is no environment any more: " + self.over}, b"")
            return
        self._pending.append((body, timeout_s, reply, fail))
        if len(self._pending) == 1:
            self._send()

    def _send(self) -> None:
        body, timeout_s, _, _ = self._pending[0]
        frame = pack(b"", body)
        if self._transport is None:
            self._early.append(frame)
        else:
            self._transport.write(frame)
        self._timer = self._agent.loop.call_later(timeout_s, self._expire, timeout_s)

    def answered(self, status: bytes, body: bytes) -> None:
        if self._timer is None:
            self.end("env_crashed", "its process spoke without being asked")
            return
        self._timer.cancel()
        self._timer = None
        _, _, reply, fail = self._pending.pop(0)
        if status == b"ok":
            reply({}, body)
        else:
            fail({"kind": "env_error", "message": "the environment raised an exception"}, body)
        if self._pending:
            self._send()

    def _expire(self, timeout_s: float) -> None:
        self.end("env_hung", f"no answer within {timeout_s:g} s")

    def _died(self, exit_code: int) -> None:
        how = f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"
        self.end("env_crashed", "its process " + how)

    def end(self, kind: str, message: str) -> None:
        """The process is dead, or is now: whoever waits learns why, and so does the fleet."""
        if self.over:
            return
        self.over = message
        if self._timer is not None:
            self._timer.cancel()
        self._kill()
        if self._transport is not None:
            self._transport.abort()
        pending, self._pending = self._pending, []
        for index, (_, _, _, fail) in enumerate(pending):
            fail({"kind": kind if index == 0 else "env_crashed", "message": "the environment is gone: " + message}, b"")
        if kind != "closed":
            self._agent.announce({"event": "env_ended", "kind": kind, "message": message})

    def _kill(self) -> None:
        for kill in (os.killpg, os.kill):
            try:
                kill(self.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue


def _user(wanted: str | None) -> dict[str, Any]:
    """Arguments of Popen that make a process run as `uid:gid`, without supplementary groups; none: as the agent."""
    if not wanted or wanted == "root":
        return {}
    uid, _, gid = wanted.partition(":")
    return {"user": int(uid), "group": int(gid), "extra_groups": []}


class Agent:
    """The operations, and the state they share: the token, the commands, the environment."""

    def __init__(self, loop: asyncio.AbstractEventLoop, config: dict[str, Any]) -> None:
        self.loop = loop
        self.workdir = str(config["workdir"])
        self.variables = {str(key): str(value) for key, value in config["variables"].items()}
        self.token = int(config["token"])
        self.secret = str(config["secret"])
        self.reaper = Reaper(loop)
        self.commands: set[Command] = set()
        self.connections: set[Connection] = set()
        self.user = _user(config.get("user"))
        self._env: EnvHost | None = None
        self._env_made = b""
        self._env_spaces = b""
        self._count = 0
        self.operations: dict[str, Operation] = {
            "exec": self._exec,
            "read": self._read,
            "write": self._write,
            "stat": self._stat,
            "fence": self._fence,
            "env.make": self._env_make,
            "env.reset": self._env_ask,
            "env.step": self._env_ask,
            "env.close": self._env_close,
        }

    async def until_orphaned(self, ttl_s: float | None) -> None:
        """Return once nobody has been connected for `ttl_s` seconds; None: never."""
        idle_since_s = time.monotonic()
        while ttl_s is None or time.monotonic() < idle_since_s + ttl_s:
            await asyncio.sleep(3600 if ttl_s is None else ttl_s / ORPHAN_CHECKS)
            if self.connections:
                idle_since_s = time.monotonic()

    def next_command(self) -> int:
        self._count += 1
        return self._count

    def path(self, path: str) -> str:
        """A path of a request; relative ones start at the working directory."""
        return os.path.join(self.workdir, path)

    def announce(self, event: dict[str, Any]) -> None:
        """Tell every connection something nobody asked for."""
        frame = pack(json.dumps(event).encode())
        for connection in self.connections:
            connection.send(frame)

    def admit(self, token: int) -> None:
        """Refuse a token lower than the highest seen; a higher one ends what lower ones started."""
        if token < self.token:
            raise Refused("stale_token", f"token {token} is stale, {self.token} is in force")
        if token > self.token:
            self.token = token
            for command in list(self.commands):
                if command.token < token:
                    command.kill()

    def _fence(self, request: dict[str, Any], body: bytes, reply: Reply, fail: Reply) -> None:
        reply({"token": self.token}, b"")

    def _exec(self, request: dict[str, Any], body: bytes, reply: Reply, fail: Reply) -> None:
        self.commands.add(Command(self, request, body, reply))

    def _read(self, request: dict[str, Any], body: bytes, reply: Reply, fail: Reply) -> None:
        limit = min(int(request.get("limit", MAX_BODY_BYTES)), MAX_BODY_BYTES)
        fd = self._open(request, os.O_RDONLY)
        try:
            data = os.pread(fd, limit, int(request.get("offset", 0)))
            reply({"size_bytes": os.fstat(fd).st_size}, data)
        finally:
            os.close(fd)

    def _write(self, request: dict[str, Any], body: bytes, reply: Reply, fail: Reply) -> None:
        offset = int(request.get("offset", 0))
        flags = os.O_WRONLY | os.O_CREAT | (0 if offset else os.O_TRUNC)
        folder = os.path.dirname(self.path(str(request["path"])))
        os.makedirs(folder, exist_ok=True)
        fd = self._open(request, flags)
        try:
            written = 0
            while written < len(body):
                written += os.pwrite(fd, body[written:], offset + written)
            if "mode" in request:
                os.fchmod(fd, int(request["mode"]))
            reply({"size_bytes": os.fstat(fd).st_size}, b"")
        finally:
            os.close(fd)

    def _open(self, request: dict[str, Any], flags: int) -> int:
        path = self.path(str(request["path"]))
        # O_NONBLOCK: opening a FIFO must not stop the only thread.
        fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise Refused("file_failed", f"{path} is not a regular file")
        return fd

    def _stat(self, request: dict[str, Any], body: bytes, reply: Reply, fail: Reply) -> None:
        found = os.lstat(self.path(str(request["path"])))
        kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "folder"), (stat.S_ISLNK, "link"))
        kind = next((name for test, name in kinds if test(found.st_mode)), "other")
        mode, modified_s = stat.S_IMODE(found.st_mode), found.st_mtime
        reply({"kind": kind, "size_bytes": found.st_size, "mode": mode, "modified_s": modified_s}, b"")

    def _env_make(self, request: dict[str, Any], body: bytes, reply: Reply, fail: Reply) -> None:
        if self._env is not None and not self._env.over and self._env_made == body:
            reply({"made": False}, self._env_spaces)
            return
        self._drop_env()
        self._env_made = body
        self._env = EnvHost(self, request)

        def made(header: dict[str, Any], spaces: bytes) -> None:
            self._env_spaces = spaces
            reply({"made": True}, spaces)

        self._env.ask(body, float(request["timeout_s"]), made, fail)

    def _env_ask(self, request: dict[str, Any], body: bytes, reply: Reply, fail: Reply) -> None:
        if self._env is None:
            raise Refused("env_crashed", "no environment was made in this sandbox")
        self._env.ask(body, float(request["timeout_s"]), reply, fail)

    def _env_close(self, request: dict[str, Any], body: bytes, reply: Reply, fail: Reply) -> None:
        if self._env is None or self._env.over:
            reply({}, b"")
            return

        def closed(header: dict[str, Any], body: bytes) -> None:
            self._drop_env()
            reply({}, b"")

        self._env.ask(body, float(request["timeout_s"]), closed, fail)

    def _drop_env(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.end("closed", "closed")


class Connection(asyncio.Protocol):
    """One client. A frame that breaks the protocol is answered with an error and ends the connection."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._frames = Frames()
        self._transport: Any = None
        self._known = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._agent.connections.discard(self)

    def pause_writing(self) -> None:
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._transport.resume_reading()

    def send(self, frame: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(frame)

    def data_received(self, data: bytes) -> None:
        try:
            for header, body in self._frames.feed(data):
                self._handle(header, body)
        except Refused as refused:
            self._error(0, {"kind": refused.kind, "message": str(refused)})
            self._transport.close()

    def _error(self, number: int, error: dict[str, Any], body: bytes = b"") -> None:
        self.send(pack(json.dumps({"id": number, "error": error}).encode(), body))

    def _handle(self, raw: bytes, body: bytes) -> None:
        try:
            request = json.loads(raw)
            number, name = int(request["id"]), str(request["op"])
        except (ValueError, KeyError, TypeError):
            raise Refused("protocol_error", "a request needs a JSON header with id and op") from None

        def reply(header: dict[str, Any], data: bytes) -> None:
            header["id"] = number
            self.send(pack(json.dumps(header).encode(), data))

        def fail(error: dict[str, Any], data: bytes) -> None:
            self._error(number, error, data)

        try:
            if name == "hello":
                self._hello(request, reply)
                return
            if not self._known:
                raise Refused("protocol_error", "say hello first")
            if name == "ping":
                reply({}, b"")
                return
            operation = self._agent.operations.get(name)
            if operation is None:
                raise Refused("protocol_error", f"unknown operation {name!r}")
            self._agent.admit(int(request["token"]))
            operation(request, body, reply, fail)
        except Refused as refused:
            fail({"kind": refused.kind, "message": str(refused)}, b"")
        except (KeyError, TypeError, ValueError) as error:
            fail({"kind": "protocol_error", "message": f"bad request {name}: {error!r}"}, b"")
        except OSError as error:
            code = errno.errorcode.get(error.errno or 0, "error")
            fail({"kind": "file_failed", "message": f"{name}: {error} ({code})"}, b"")

    def _hello(self, request: dict[str, Any], reply: Reply) -> None:
        if request.get("secret") != self._agent.secret:
            raise Refused("protocol_error", "wrong secret")
        self._known = True
        self._agent.connections.add(self)
        python = ".".join(map(str, sys.version_info[:3]))
        reply({"version": VERSION, "pid": os.getpid(), "python": python, "token": self._agent.token}, b"")


async def serve(listener: socket.socket, config: dict[str, Any]) -> None:
    """Serve until killed, or until nobody has been connected for `orphan_ttl_s`."""
    loop = asyncio.get_event_loop()
    agent = Agent(loop, config)
    server = await loop.create_unix_server(lambda: Connection(agent), sock=listener)
    async with server:
        await agent.until_orphaned(config.get("orphan_ttl_s"))


def forbid_inspection() -> None:
    """Processes of this one's own user may not read its memory, environment or descriptors (PR_SET_DUMPABLE 0)."""
    import ctypes  # a MiB that only agents without a forkserver pay

    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)


def main() -> None:
    """`agent.py CONFIG`: a descriptor or the path of a JSON file, which is removed: it holds the secret.

    With `listener`, the number of a listening socket, in it that is served; else a socket is bound at `socket`.
    """
    source = sys.argv[1]
    with open(int(source) if source.isdigit() else source, "rb") as file:
        config = json.loads(file.read())
    if not source.isdigit():
        os.unlink(source)
    forbid_inspection()
    if "listener" in config:
        listener = socket.socket(fileno=int(config["listener"]))
    else:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Who may reach the folder may connect; the owner of the sandbox need not be this user.
        mask = os.umask(0)
        listener.bind(config["socket"])
        os.umask(mask)
        listener.listen(8)
    asyncio.run(serve(listener, config))


if __name__ == "__main__":
    main()
