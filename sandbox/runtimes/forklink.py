"""The owner's end of one `forkserver.py`: requests, and the news of sandboxes that ended.

A forkserver that may outlive its owner (`durable_s`) leaves in its folder what a successor needs:
`door.sock`, and the secret it asks for in `door.json`, both for this user alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from rocknroll.sandbox.errors import RuntimeUnavailable, StartFailed
from rocknroll.sandbox.runtimes import cgroup

MESSAGE_BYTES = 1 << 20
CLOSE_PATIENCE_S = 15.0
ADOPT_PATIENCE_S = 5.0
"""A forkserver that is busy with the end of its last owner is asked again for so long."""
ADOPT_PAUSE_S = 0.02
DOOR, DOOR_FACTS = "door.sock", "door.json"
_RUNTIMES = Path(__file__).resolve().parent


def inherited_variables() -> dict[str, str]:
    """Nothing of this process's environment but what programs cannot run without: it may hold secrets."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
    # One sandbox is worth one thread; libraries that start one per core also make forking unsafe.
    return {"LANG": "C.UTF-8", **kept, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class End:
    """How a sandbox ended."""

    def __init__(self, code: int | None, out_of_memory: int = 0, reason: str = "") -> None:
        self.code, self.out_of_memory = code, out_of_memory
        self._reason = reason

    def __str__(self) -> str:
        if self.code is None:
            return self._reason
        # Supervisors pass a signal on as 128 + its number, as shells do.
        number = -self.code if self.code < 0 else self.code - 128 if self.code > 128 else 0
        text = f"was killed by signal {number}" if number else f"ended with code {self.code}"
        if self.out_of_memory:
            how = "out of memory, " if number == signal.SIGKILL else ""
            text += f" ({how}the kernel killed {self.out_of_memory} of its processes at the memory limit)"
        return "its process " + text


class ForkLink:
    """Make one with `launch` or `succeed`."""

    def __init__(self, folder: Path, ours: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        self.folder = folder
        self.adopted: dict[str, Mapping[str, Any]] = {}
        """The sandboxes that were taken over with it, by instance."""
        self.places: Mapping[str, Any] = {}
        """Where it makes control groups."""
        self._process, self._socket = process, ours
        self._pid_fd = -1
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._count = 0
        self._exits: dict[int, Callable[[End], None]] = {}
        self._ended_early: dict[int, End] = {}
        self._over = ""
        ours.setblocking(False)
        asyncio.get_running_loop().add_reader(ours, self._readable)

    @classmethod
    def launch(cls, folder: Path, durable: bool) -> Self:
        """Start the process; `folder` is its own, and it removes it when it ends."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, (folder / "forkserver.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-I", str(_RUNTIMES / "forkserver.py"), *(["durable"] if durable else [])],
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
                cwd="/",
                env=inherited_variables(),
                # Of a terminal that closes, or a process group that is killed, only the owner is to die.
                start_new_session=durable,
            )
        return cls(folder, ours, process)

    @classmethod
    async def succeed(cls, folder: Path) -> Self | None:
        """Become the owner of a forkserver whose owner is gone; None when it is gone as well.

        Raises:
            RuntimeUnavailable: its owner lives, or it does not answer.
        """
        deadline_s = time.monotonic() + ADOPT_PATIENCE_S
        while True:
            try:
                facts = json.loads((folder / DOOR_FACTS).read_text())
                ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                ours.connect(str(folder / DOOR))
            except OSError:
                return None
            link = cls(folder, ours)
            try:
                link._pid_fd = os.pidfd_open(int(facts["pid"]))
                answer = await link.call("adopt", ADOPT_PATIENCE_S, secret=facts["secret"])
            except (StartFailed, ProcessLookupError) as refused:
                link.detach()
                if time.monotonic() > deadline_s:
                    raise RuntimeUnavailable(f"the forkserver of {folder} cannot be taken over: {refused}") from None
                await asyncio.sleep(ADOPT_PAUSE_S)
                continue
            link.places = facts["places"]
            link.adopted = {fact["instance"]: fact for fact in answer["sandboxes"]}
            return link

    def note(self, secret: str, places: Mapping[str, Any]) -> None:
        """Write down what a successor needs."""
        assert self._process is not None
        self.places = places
        facts = {"pid": self._process.pid, "secret": secret, "places": places}
        with os.fdopen(os.open(self.folder / DOOR_FACTS, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            json.dump(facts, file)

    async def call(self, op: str, timeout_s: float, **fields: Any) -> dict[str, Any]:
        """One request.

        Raises:
            StartFailed: it was refused, the forkserver is gone, or it did not answer in time.
        """
        if self._over:
            raise StartFailed(self._over)
        loop = asyncio.get_running_loop()
        self._count += 1
        number = self._count
        reply: asyncio.Future[dict[str, Any]] = loop.create_future()
        self._replies[number] = reply
        try:
            async with asyncio.timeout(timeout_s):
                await loop.sock_sendall(self._socket, json.dumps({"id": number, "op": op, **fields}).encode())
                answer = await reply
        except TimeoutError:
            raise StartFailed(f"the forkserver did not answer {op} within {timeout_s:g} s") from None
        except OSError as error:
            raise StartFailed(f"the forkserver is gone: {error}") from None
        finally:
            self._replies.pop(number, None)
        if "error" in answer:
            text = str(answer["error"])
            raise StartFailed(f"{text}\n{answer.get('traceback', '')}".rstrip(), permanent="traceback" in answer)
        return answer

    def watch(self, pid: int, callback: Callable[[End], None]) -> None:
        """Call back when the sandbox with this pid is gone."""
        if pid in self._ended_early:
            callback(self._ended_early.pop(pid))
        elif self._over:
            callback(End(None, reason=self._over))
        else:
            self._exits[pid] = callback

    def _readable(self) -> None:
        try:
            raw = self._socket.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            raw = b""
        if not raw:
            self._ended()
            return
        message = json.loads(raw)
        if "exited" not in message:
            reply = self._replies.get(message["id"])
            if reply is not None and not reply.done():
                reply.set_result(message)
            return
        pid, end = int(message["exited"]), End(int(message["code"]), int(message["out_of_memory"]))
        callback = self._exits.pop(pid, None)
        if callback is not None:
            callback(end)
        else:
            self._ended_early[pid] = end

    def _ended(self, reason: str = "the forkserver is gone") -> None:
        if self._over:
            return
        self._over = reason
        asyncio.get_running_loop().remove_reader(self._socket)
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(StartFailed(self._over))
        exits, self._exits = self._exits, {}
        for callback in exits.values():
            callback(End(None, reason=self._over))

    @property
    def over(self) -> bool:
        return bool(self._over)

    def detach(self) -> None:
        """Let go of it without ending it; whether it goes on is its own `durable_s`."""
        self._ended("this process let go of the forkserver")
        self._socket.close()
        if self._pid_fd >= 0:
            os.close(self._pid_fd)
            self._pid_fd = -1

    async def close(self) -> None:
        """End it and all its sandboxes; nothing is left of them: no process, no group, no file. Idempotent."""
        if not self._over:
            try:
                await asyncio.get_running_loop().sock_sendall(self._socket, json.dumps({"id": 0, "op": "end"}).encode())
            except OSError as error:
                self._ended(f"the forkserver is gone: {error}")
        self._ended()
        self._socket.close()
        await asyncio.to_thread(self._wait)
        await asyncio.to_thread(clean, self.folder, self.places)

    def _wait(self) -> None:
        """Until the process is gone, by force if need be."""
        if self._process is not None:
            try:
                self._process.wait(CLOSE_PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        elif self._pid_fd >= 0:
            poll = select.poll()
            poll.register(self._pid_fd, select.POLLIN)
            if not poll.poll(CLOSE_PATIENCE_S * 1e3):
                signal.pidfd_send_signal(self._pid_fd, signal.SIGKILL)
                poll.poll()
            os.close(self._pid_fd)
            self._pid_fd = -1


def clean(folder: Path, places: Mapping[str, Any] | None = None) -> None:
    """Remove what a forkserver that is gone left behind: processes in its control groups, the groups, its folder."""
    if places is None:
        try:
            places = json.loads((folder / DOOR_FACTS).read_text())["places"]
        except (OSError, ValueError):
            places = {}
    for groups in cgroup.remains(dict(places or {}), folder.name):
        cgroup.end(groups)
    shutil.rmtree(folder, ignore_errors=True)


def new_secret() -> str:
    return secrets.token_hex(16)
