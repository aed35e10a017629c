"""The folder that a manager of sandboxes works in, and the lock that keeps it to one manager.

Holds the record, the socket, the log and the sandboxes' files; mode 0700. The lock ends with the
process that took it, however that ended, so a folder is never left locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from rocknroll.sandbox.errors import SocketPathTooLong, StateLocked, StoreFailed

STATE_VARIABLE = "ROCK_STATE"
SOCKET_PATH_LIMIT_BYTES = 107
"""sockaddr_un holds 108 bytes, the closing zero included."""
SANDBOX_SOCKET_BYTES = len("/run/rock-1000000-abcdef012345/abcdef01/run/agent.sock")
"""What a sandbox's socket adds to the folder's path, at most."""


_FLOCK = "hhqqi4x"
"""struct flock of 64-bit Linux."""


def default_folder() -> Path:
    """`$ROCK_STATE`, else the user's folder for such things."""
    named = os.environ.get(STATE_VARIABLE)
    return Path(named) if named else Path(platformdirs.user_state_dir("rocknroll")) / "rock"


@dataclass(frozen=True)
class StateFolder:
    """The places in one state folder. Nothing is made before `prepare`."""

    path: Path

    @property
    def socket(self) -> Path:
        """Where the service listens by default."""
        return self.path / "rock.sock"

    @property
    def store(self) -> Path:
        return self.path / "store.sqlite"

    @property
    def log(self) -> Path:
        """What a detached manager prints."""
        return self.path / "rock.log"

    @property
    def fleet(self) -> Path:
        """The fleet that was started last, as JSON."""
        return self.path / "fleet.json"

    @property
    def run(self) -> Path:
        """Files of running sandboxes."""
        return self.path / "run"

    @property
    def _lock(self) -> Path:
        return self.path / "lock"

    def last_fleet(self) -> dict[str, Any]:
        """What `fleet` holds; empty when no manager ever wrote one here."""
        try:
            found = json.loads(self.fleet.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def service(self) -> Path:
        """The socket of the fleet that was started last."""
        named = self.last_fleet().get("listen", {}).get("unix")
        return Path(named) if named else self.socket

    def check(self) -> None:
        """See that the folder, if it is there, can be this user's state folder.

        Raises:
            SocketPathTooLong: sandboxes in it could have no sockets. StoreFailed: it is another user's.
        """
        length = len(str(self.path).encode()) + SANDBOX_SOCKET_BYTES
        if length > SOCKET_PATH_LIMIT_BYTES:
            raise SocketPathTooLong(
                f"the state folder {self.path} is too deep: socket paths in it would have {length} bytes, the kernel"
                f" accepts {SOCKET_PATH_LIMIT_BYTES}. Choose a shorter one with `--state` or ${STATE_VARIABLE}."
            )
        if self.path.is_dir() and (owner := self.path.stat().st_uid) != os.geteuid():
            raise StoreFailed(
                f"the state folder {self.path} belongs to user {owner}, this is user {os.geteuid()}."
                f" Choose another with `--state` or ${STATE_VARIABLE}."
            )

    def prepare(self) -> None:
        """Make the folder and see that it can be written.

        Raises:
            SocketPathTooLong, StoreFailed: see `check`; also StoreFailed when it cannot be made or written.
        """
        self.check()
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.path.chmod(0o700)
            self.run.mkdir(exist_ok=True, mode=0o700)
            os.close(os.open(self._lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise StoreFailed(
                f"the state folder {self.path} cannot be used: {error.strerror}. Choose another with `--state` or"
                f" ${STATE_VARIABLE}, or correct its permissions."
            ) from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Be the one manager of this folder, which must be prepared.

        Raises:
            StateLocked: another process is; StoreFailed: the lock cannot be written.
        """
        with self._lock.open("r+", encoding="ascii") as file:
            try:
                fcntl.fcntl(file, fcntl.F_OFD_SETLK, _lock_of(fcntl.F_WRLCK))
            except (BlockingIOError, PermissionError):
                raise StateLocked(
                    f"the manager with pid {file.read().strip() or 'unknown'} works on {self.path} already."
                    " End it with `rock down`, or choose another folder with `--state`."
                ) from None
            try:
                self._write_pid(file.fileno(), f"{os.getpid()}\n")
                yield
            finally:
                with contextlib.suppress(StoreFailed):  # the lock ends with the file, whatever it says
                    self._write_pid(file.fileno(), "")

    def manager(self) -> int | None:
        """Pid of the living manager; None when there is none."""
        try:
            with self._lock.open(encoding="ascii") as file:
                found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _lock_of(fcntl.F_WRLCK))
                text = file.read().strip()
        except OSError:
            return None
        locked = struct.unpack(_FLOCK, found)[0] != fcntl.F_UNLCK
        return int(text) if locked and text.isdecimal() else None

    def _write_pid(self, descriptor: int, text: str) -> None:
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, text.encode("ascii"), 0)
        except OSError as error:
            raise StoreFailed(f"cannot write {self._lock}: {error.strerror}") from error


def _lock_of(kind: int) -> bytes:
    """A lock of the whole file, as the kernel wants it said. Unlike `flock`, such locks can be asked after without
    being taken."""
    return struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0)
