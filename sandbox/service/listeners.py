"""Sockets that the service listens on, and who is at the other end of a connection.

Sockets are made before anything starts, so that a taken address is a clear error at once. The Unix
socket is made with mode 0600 from its first moment; one that a dead manager left is replaced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from rocknroll.sandbox.channel import SOCKET_PATH_LIMIT_BYTES
from rocknroll.sandbox.errors import AddressUnavailable, SocketPathTooLong
from rocknroll.sandbox.service.access import Peer

BACKLOG = 1024
_UCRED = "3i"
_WHY = {
    errno.EADDRINUSE: "another program listens there; stop it (`ss -ltnp` names it) or choose another address",
    errno.EACCES: "this user may not; choose a port above 1023 or another folder",
    errno.EADDRNOTAVAIL: "this machine has no such address; choose one that `ip address` lists",
    errno.ENOENT: "the folder does not exist; make it, or choose another",
}


class PeerProtocol(H11Protocol):
    """HTTP/1.1 whose requests know the process at the other end (`request.state.peer`)."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        local = connection.family == socket.AF_UNIX
        self.app_state = {**self.app_state, "peer": Peer(local, _peer_pid(connection) if local else None)}


class QuietServer(uvicorn.Server):
    """Leaves signals to its caller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def unix_socket(path: Path) -> socket.socket:
    """A listening socket at `path`, for this user alone.

    Raises:
        SocketPathTooLong: the kernel takes no such path. AddressUnavailable: the text says why.
    """
    length = len(str(path).encode())
    if length > SOCKET_PATH_LIMIT_BYTES:
        raise SocketPathTooLong(
            f"the socket path {path} has {length} bytes, the kernel accepts {SOCKET_PATH_LIMIT_BYTES};"
            " choose a shorter one with `--state`, or `listen.unix` in the fleet file"
        )
    _clear(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listening.bind(str(path))
    except OSError as error:
        listening.close()
        raise _unavailable(str(path), error) from error
    finally:
        os.umask(before)
    listening.listen(BACKLOG)
    return listening


def tcp_socket(address: str) -> socket.socket:
    """A listening socket at `host:port`.

    Raises:
        AddressUnavailable: the text says why.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise AddressUnavailable(f"cannot listen on {address}: {error.strerror}") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise _unavailable(address, error) from error
    return listening


def _clear(path: Path) -> None:
    """Remove a socket that nobody serves any more."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise AddressUnavailable(f"cannot listen on {path}: there is something there that is no socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
            trial.connect(str(path))
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise _unavailable(str(path), error) from error
    else:
        raise AddressUnavailable(f"cannot listen on {path}: another program serves this socket")


def _unavailable(address: str, error: OSError) -> AddressUnavailable:
    why = _WHY.get(error.errno or 0, error.strerror or str(error))
    return AddressUnavailable(f"cannot listen on {address}: {why}")


def _peer_pid(connection: socket.socket) -> int | None:
    """Process that connected; None when it is in a namespace of processes that this one does not see."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(_UCRED))
    pid, _, _ = struct.unpack(_UCRED, credentials)
    return int(pid) or None
