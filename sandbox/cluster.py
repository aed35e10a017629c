"""Which Ray cluster is meant, if any, and joining it. Ray is imported only when one is.

Nothing is guessed after a failure: a cluster that was named and does not answer is an error, never a reason to go on
with this machine alone.
"""

from __future__ import annotations

import logging
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from rocknroll.sandbox.errors import ClusterUnavailable

LOCAL, AUTO = "local", "auto"
ADDRESS_VARIABLE = "RAY_ADDRESS"
INSTALL = "pip install 'rocknroll[ray]'"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
CONNECT_TIMEOUT_S = 5.0
"""Of the TCP connection to a cluster's address; Ray itself would try for minutes."""


@dataclass(frozen=True)
class ClusterChoice:
    """A cluster, or this machine alone (no `address`), and who said so."""

    address: str
    because: str

    def __str__(self) -> str:
        where = f"the Ray cluster at {self.address}" if self.address else "this machine alone"
        return f"{where} is used: {self.because}"


def choose_cluster(
    address: str | None, environ: Mapping[str, str] = os.environ, ray_folder: Path | None = None
) -> ClusterChoice:
    """What `cluster.address` means here.

    `local` is this machine alone; `host:port` is that cluster; None and `auto` are the one of `$RAY_ADDRESS`, else the
    one that `ray start` began on this machine. When there is neither, None is this machine, and `auto` an error.

    Raises:
        ClusterUnavailable: the cluster that is meant does not answer, or there is none to be meant.
    """
    if address == LOCAL:
        return ClusterChoice("", "`cluster.address` is `local`")
    if address not in (None, AUTO):
        return _answering(ClusterChoice(_checked(address, "`cluster.address`"), "`cluster.address` names it"))
    variable = environ.get(ADDRESS_VARIABLE, "")
    if variable == LOCAL:
        return ClusterChoice("", f"${ADDRESS_VARIABLE} is `local`")
    if variable and variable != AUTO:
        return _answering(ClusterChoice(_checked(variable, f"${ADDRESS_VARIABLE}"), f"${ADDRESS_VARIABLE} names it"))
    found = _started(environ, ray_folder)
    if found is not None and not _refusal(found):
        return ClusterChoice(found, "`ray start` began it on this machine")
    if address == AUTO or variable == AUTO:
        who = "`cluster.address`" if address == AUTO else f"${ADDRESS_VARIABLE}"
        raise ClusterUnavailable(
            f"{who} is `auto`, and no Ray cluster was started on this machine"
            f"{f' (the one at {found} has ended)' if found else ''}: start or join one with `ray start`, or name its"
            " address"
        )
    stale = f"; the cluster at {found}, which `ray start` began here, has ended" if found else ""
    return ClusterChoice("", f"no cluster is named or started here{stale}")


def check_installed(choice: ClusterChoice) -> None:
    """Look for Ray without importing it.

    Raises:
        ClusterUnavailable: it is missing.
    """
    if find_spec("ray") is None:
        raise ClusterUnavailable(f"{choice}, but Ray is not installed here: {INSTALL}")


def join(choice: ClusterChoice) -> bool:
    """Connect this process to the cluster; False when it was connected to one already, by somebody who disconnects it.

    Raises:
        ClusterUnavailable: the cluster does not fit this process, or does not take it.
    """
    import ray

    if ray.is_initialized():
        return False
    logging.getLogger("ray").setLevel(logging.ERROR)  # what goes wrong is said here, by exceptions
    try:
        ray.init(
            address=choice.address,
            namespace="rocknroll",
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as refused:
        raise ClusterUnavailable(f"{choice}. It cannot be joined from here: {_advice(str(refused), choice)}") from None
    return True


def leave() -> None:
    """Disconnect; what this process owned in the cluster ends."""
    import ray

    ray.shutdown()


@contextmanager
def on_cluster(choice: ClusterChoice) -> Iterator[str]:
    """Joined to that cluster; gives this machine's address in it.

    Raises:
        ClusterUnavailable: it does not take this process: another version of Ray or Python, or a machine outside it.
    """
    import ray

    joined = join(choice)
    try:
        yield str(ray.util.get_node_ip_address())
    finally:
        if joined:
            leave()


def _advice(text: str, choice: ClusterChoice) -> str:
    if "mismatch" in text.lower():
        return f"{text} Install the same versions on all machines."
    if "node" in text.lower() and ("ip address" in text.lower() or "raylet" in text.lower()):
        return (
            f"this machine is no node of it. Make it one that takes no sandboxes:"
            f" `ray start --address={choice.address} --num-cpus=0` ({text})"
        )
    return text


def _checked(address: str, who: str) -> str:
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal():
        raise ClusterUnavailable(
            f"{who} is {address!r}; it must be `host:port` of the cluster's head (`ray start` prints it), `auto` or"
            " `local`. Ray Client (ray://) cannot be used: sandboxes need a process inside the cluster"
        )
    return address


def _answering(choice: ClusterChoice) -> ClusterChoice:
    refusal = _refusal(choice.address)
    if refusal:
        raise ClusterUnavailable(
            f"the Ray cluster at {choice.address} does not answer ({refusal}), and {choice.because}: start it with"
            " `ray start --head`, correct the address, or set `cluster.address: local` for this machine alone"
        )
    return choice


def _refusal(address: str) -> str:
    """Why nothing can be reached there; empty when something listens."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        if host in LOOPBACK:
            host = _own_address()
        with socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S):
            return ""
    except OSError as error:
        return str(error)


def _own_address() -> str:
    """What Ray replaces loopback by: nothing is sent, the kernel only says which way it would go."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("8.8.8.8", 80))
        except OSError:
            return LOOPBACK[0]  # a machine without a network has no other
        return str(probe.getsockname()[0])


def _started(environ: Mapping[str, str], folder: Path | None) -> str | None:
    """The address that the last `ray start` on this machine wrote down; by this user or root, for anyone may write
    to the temporary folder, and who joins a cluster trusts it."""
    file = (folder or Path(environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / "ray") / "ray_current_cluster"
    try:
        return file.read_text(encoding="utf-8").strip() or None if file.stat().st_uid in (0, os.getuid()) else None
    except OSError:
        return None
