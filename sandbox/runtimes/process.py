"""Sandboxes as processes of this machine, without a daemon: the embedded default.

Isolation is what the kernel grants: own namespaces, else bubblewrap (which some distributions allow
where they refuse us), else a plain process group with rlimits; `isolation()` says which and why.
Sandboxes of one kind are forked from one `forkserver.py`, and die with it when this process goes.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, Self

import rocknroll
from rocknroll.sandbox.channel import check_socket_path
from rocknroll.sandbox.errors import RuntimeUnavailable, StartFailed
from rocknroll.sandbox.runtimes.base import Isolation
from rocknroll.sandbox.spec import SandboxSpec

Level = Literal["namespaces", "bubblewrap", "plain"]
KILL_PATIENCE_S = 2.0
"""A sandbox that is not gone by then after a polite end gets the signal that nothing survives."""
CLOSE_PATIENCE_S = 15.0
OUTPUT_TAIL_BYTES = 4096
SYSTEM_PATHS = (
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
_SANDBOX = Path(__file__).resolve().parent.parent


def _package_paths() -> tuple[Path, list[Path]]:
    """The folder to import this package from, and all folders its files lie in (it may be links)."""
    package = Path(rocknroll.__file__).parent
    return package.parent, [package, *(part.resolve() for part in package.iterdir() if part.is_symlink())]


def _inherited_variables() -> dict[str, str]:
    """Nothing of this process's environment but what programs cannot run without: it may hold secrets."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
    # One sandbox is worth one thread; libraries that start one per core also make forking unsafe.
    return {"LANG": "C.UTF-8", **kept, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class _ForkServer:
    """Our end of one `forkserver.py`."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], ours: socket.socket) -> None:
        self.folder = folder
        self._process, self._socket = process, ours
        self._replies: deque[asyncio.Future[dict[str, Any]]] = deque()
        self._exits: dict[int, Callable[[str], None]] = {}
        self._over = ""
        asyncio.get_running_loop().add_reader(ours, self._readable)

    @classmethod
    def launch(cls, folder: Path) -> Self:
        """Start the process; `folder` is its own, and it removes it when it ends."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs, (folder / "forkserver.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-I", str(_SANDBOX / "runtimes" / "forkserver.py")],
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
                cwd="/",
                env=_inherited_variables(),
            )
        return cls(folder, process, ours)

    async def call(self, op: str, timeout_s: float, **fields: Any) -> dict[str, Any]:
        """One request; requests are served in order.

        Raises:
            StartFailed: it was refused, the forkserver is gone, or it did not answer in time.
        """
        if self._over:
            raise StartFailed(self._over)
        reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._replies.append(reply)
        await asyncio.get_running_loop().sock_sendall(self._socket, json.dumps({"op": op, **fields}).encode())
        try:
            async with asyncio.timeout(timeout_s):
                answer = await reply
        except TimeoutError:
            raise StartFailed(f"the forkserver did not answer {op} within {timeout_s:g} s") from None
        if "error" in answer:
            text = str(answer["error"])
            raise StartFailed(f"{text}\n{answer.get('traceback', '')}".rstrip(), permanent="traceback" in answer)
        return answer

    def watch(self, pid: int, callback: Callable[[str], None]) -> None:
        """Call back with the reason when the sandbox with this pid is gone."""
        if self._over:
            callback(self._over)
        else:
            self._exits[pid] = callback

    def _readable(self) -> None:
        try:
            raw = self._socket.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            raw = b""
        if not raw:
            self._ended()
            return
        message = json.loads(raw)
        if "exited" not in message:
            reply = self._replies.popleft()
            if not reply.done():
                reply.set_result(message)
            return
        code, callback = int(message["code"]), self._exits.pop(int(message["exited"]), None)
        if callback is not None:
            callback(f"its process was killed by signal {-code}" if code < 0 else f"its process ended with code {code}")

    def _ended(self) -> None:
        if self._over:
            return
        self._over = "the forkserver is gone"
        asyncio.get_running_loop().remove_reader(self._socket)
        for reply in self._replies:
            if not reply.done():
                reply.set_exception(StartFailed(self._over))
        exits, self._exits = self._exits, {}
        for callback in exits.values():
            callback(self._over)

    @property
    def over(self) -> bool:
        return bool(self._over)

    async def close(self) -> None:
        """End it and all its sandboxes; nothing is left in the file system."""
        self._ended()
        self._socket.close()
        try:
            await asyncio.to_thread(self._process.wait, CLOSE_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)


class ProcessInstance:
    """One sandbox, as the fleet sees it (see `base.Instance`)."""

    def __init__(self, server: _ForkServer, folder: Path, secret: str) -> None:
        self.socket_path = folder / "agent.sock"
        self.secret = secret
        self.python: tuple[str, ...] = (sys.executable,)
        self.pid = 0
        self._folder, self._server = folder, server
        self._gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def watch(self, pid: int) -> None:
        self.pid = pid
        self._server.watch(pid, lambda reason: None if self._gone.done() else self._gone.set_result(reason))

    def on_exit(self, callback: Callable[[str], None]) -> None:
        self._gone.add_done_callback(lambda gone: callback(gone.result()))

    async def kill(self) -> None:
        for hard in (False, True):
            if not self._gone.done() and not self._server.over:
                await self._server.call("kill", KILL_PATIENCE_S, pid=self.pid, hard=hard)
                await asyncio.wait([self._gone], timeout=KILL_PATIENCE_S)
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def output_tail(self) -> str:
        try:
            with (self._folder / "log").open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - OUTPUT_TAIL_BYTES))
                return file.read().decode(errors="replace").strip()
        except OSError:
            return ""


class ProcessRuntime:
    """`level` asks for one kind of isolation; None takes the best that the kernel grants."""

    name = "process"

    def __init__(self, level: Level | None = None, folder: Path | None = None) -> None:
        self._wanted, self._parent = level, folder
        self._servers: dict[str, asyncio.Task[_ForkServer]] = {}
        self._isolation: Isolation | None = None
        self._bubblewrap = shutil.which("bwrap")
        self._count = 0

    async def isolation(self) -> Isolation:
        if self._isolation is None:
            server = await self._server(SandboxSpec())
            self._isolation = self._isolation or await self._find_isolation(server)
        return self._isolation

    async def start(self, spec: SandboxSpec, instance_id: str, floor: int) -> ProcessInstance:
        server = await self._server(spec)
        if self._isolation is None:
            self._isolation = await self._find_isolation(server)
        self._count += 1
        folder = server.folder / str(self._count)
        instance = ProcessInstance(server, folder, secrets.token_hex(16))
        check_socket_path(instance.socket_path)
        job = self._job(spec, instance_id, folder, instance, floor)
        spawning = asyncio.create_task(server.call("spawn", spec.start_timeout_s, **job))
        try:
            await asyncio.shield(spawning)
        except asyncio.CancelledError:
            instance.watch(int((await spawning)["pid"]))
            await instance.kill()
            raise
        except StartFailed:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            raise
        instance.watch(int(spawning.result()["pid"]))
        return instance

    async def close(self) -> None:
        servers, self._servers = self._servers, {}
        opened = await asyncio.gather(*servers.values(), return_exceptions=True)
        await asyncio.gather(*(server.close() for server in opened if isinstance(server, _ForkServer)))

    def _job(
        self, spec: SandboxSpec, instance_id: str, folder: Path, instance: ProcessInstance, floor: int
    ) -> dict[str, Any]:
        assert self._isolation is not None
        workdir = folder / "work"
        importable, package = _package_paths()
        extra = [importable, *(spec.env.python_path if spec.env else ())]
        variables = {
            **_inherited_variables(),
            "HOME": str(workdir),
            "ROCKNROLL_SANDBOX": instance_id,
            "PYTHONPATH": os.pathsep.join(str(path.absolute()) for path in extra),
            **spec.variables,
        }
        python = [Path(sys.prefix), Path(sys.base_prefix)]
        readable = [str(path.absolute()) for path in (*python, *package, *extra[1:], *spec.readable) if path.exists()]
        return {
            "level": self._isolation.level,
            "workdir": str(workdir),
            "root": str(folder / "root"),
            "socket": str(instance.socket_path),
            "log": str(folder / "log"),
            "readable": readable,
            "network": spec.network == "host",
            "resources": spec.resources.model_dump(),
            "bubblewrap": self._bubblewrap_command(spec, workdir, readable),
            "agent": {"workdir": str(workdir), "variables": variables, "token": floor, "secret": instance.secret},
        }

    def _bubblewrap_command(self, spec: SandboxSpec, workdir: Path, readable: Iterable[str]) -> list[str]:
        command = [self._bubblewrap or "bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
        command += [
            "--die-with-parent",
            "--as-pid-1",
            "--cap-drop",
            "ALL",
            "--uid",
            "1000",
            "--gid",
            "1000",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--tmpfs",
            "/tmp",
        ]
        command += [] if spec.network == "host" else ["--unshare-net"]
        for path in (*SYSTEM_PATHS, *readable):
            if path in SYSTEM_PATHS and Path(path).is_symlink():
                command += ["--symlink", str(Path(path).readlink()), path]
            else:
                command += [
                    part for place in {path, os.path.realpath(path)} for part in ("--ro-bind-try", place, place)
                ]
        command += ["--bind", str(workdir), str(workdir), "--chdir", str(workdir)]
        return [*command, "--", sys.executable, "-I", "-S", str(_SANDBOX / "agent")]

    async def _server(self, spec: SandboxSpec) -> _ForkServer:
        """The forkserver for this kind of sandbox, started on first use and again if it died."""
        preload = spec.env is not None and spec.env.preload
        key = (
            json.dumps([spec.env.entry_point, [*map(str, spec.env.python_path)], spec.variables])
            if preload and spec.env
            else ""
        )
        task = self._servers.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() or task.result().over)):
            task = self._servers[key] = asyncio.create_task(self._open_server(spec, preload))
        return await asyncio.shield(task)

    async def _open_server(self, spec: SandboxSpec, preload: bool) -> _ForkServer:
        if sys.platform != "linux":
            raise RuntimeUnavailable(f"the process runtime needs Linux, this is {sys.platform}")
        folder = Path(tempfile.mkdtemp(prefix="rock-", dir=self._parent))
        server = _ForkServer.launch(folder)
        env = spec.env if preload else None
        modules = [env.host, env.entry_point.partition(":")[0]] if env else []
        path = [_package_paths()[0], *(env.python_path if env else ())]
        try:
            answer = await server.call(
                "hello",
                env.make_timeout_s if env else spec.start_timeout_s,
                folder=str(folder),
                preload=modules,
                python_path=[str(part.absolute()) for part in path],
                variables=dict(spec.variables) if env else {},
            )
            if env and answer["threads"] > 1:
                raise StartFailed(
                    f"importing {modules[-1]} started {answer['threads'] - 1} threads, which do not survive a fork; "
                    "set env.preload to false",
                    permanent=True,
                )
        except BaseException:
            await server.close()
            raise
        return server

    async def _find_isolation(self, server: _ForkServer) -> Isolation:
        probe = server.folder / "probe"
        (probe / "work").mkdir(parents=True, exist_ok=True)
        (probe / "root").mkdir(exist_ok=True)
        answer = await server.call("probe", 10.0, root=str(probe / "root"), workdir=str(probe / "work"))
        refused = str(answer["refused"])
        wrapped = self._bubblewrap is not None and await asyncio.to_thread(_bubblewrap_works, self._bubblewrap)
        level: Level = self._wanted or ("namespaces" if not refused else "bubblewrap" if wrapped else "plain")
        if (level == "namespaces" and refused) or (level == "bubblewrap" and not wrapped):
            raise RuntimeUnavailable(
                f"isolation {level!r} is not to be had here: {refused or 'bwrap is missing or refused'}"
            )
        return _ISOLATION[level] if not refused else _with_reason(_ISOLATION[level], refused)


def _bubblewrap_works(bubblewrap: str) -> bool:
    command = [
        bubblewrap,
        "--unshare-user",
        "--unshare-pid",
        "--unshare-net",
        "--ro-bind",
        "/",
        "/",
        "--proc",
        "/proc",
        "true",
    ]
    return subprocess.run(command, capture_output=True, timeout=10.0, check=False).returncode == 0


_SEPARATED = ("processes", "files", "network", "ipc", "privileges")
_ISOLATION: dict[str, Isolation] = {
    "namespaces": Isolation("namespaces", _SEPARATED, ("kernel", "memory and cpu share")),
    "bubblewrap": Isolation("bubblewrap", _SEPARATED, ("kernel", "memory and cpu share")),
    "plain": Isolation(
        "plain",
        ("process group", "rlimits"),
        ("kernel", "memory and cpu share", "processes", "files", "network", "ipc"),
    ),
}


def _with_reason(isolation: Isolation, refused: str) -> Isolation:
    remedy = "" if isolation.level == "bubblewrap" else "sudo apt-get install bubblewrap"
    if not Path("/proc/sys/user/max_user_namespaces").exists():
        remedy = "none: this kernel has no user namespaces"
    elif Path("/proc/sys/user/max_user_namespaces").read_text().strip() == "0":
        remedy = "sudo sysctl user.max_user_namespaces=10000"
    return Isolation(isolation.level, isolation.separated, isolation.shared, f"own namespaces: {refused}", remedy)
