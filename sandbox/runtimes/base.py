"""The seam between the fleet and where sandboxes live.

A runtime makes instances and ends them. It knows nothing of leases, probes or restarts; the fleet
knows nothing of namespaces or containers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rocknroll.sandbox.channel import Route
from rocknroll.sandbox.errors import SandboxLost
from rocknroll.sandbox.spec import SandboxSpec


@dataclass(frozen=True)
class Isolation:
    """What a runtime got on this machine, said honestly."""

    level: str
    separated: tuple[str, ...]
    """What a sandbox has to itself: `processes`, `files`, `network`, …"""
    shared: tuple[str, ...]
    """What it shares with the host all the same."""
    missing: str = ""
    """Why it is not more; empty when nothing is missing."""
    remedy: str = ""
    """The one command that would give more."""


class Instance(Protocol):
    """One running sandbox."""

    node: str
    """Machine that it runs on (`nodes.this_node`)."""
    pid: int
    """Process on that machine that the instance ends with."""
    secret: str
    python: tuple[str, ...]
    """Command of the Python interpreter inside."""

    @property
    def way(self) -> Path | Route:
        """Where its agent serves: a Unix socket of this machine, or the way to another machine's."""

    @property
    def record(self) -> Mapping[str, Any]:
        """What `Runtime.adopt` finds it again by, as JSON; the store keeps it, with the secret."""

    def on_exit(self, callback: Callable[[SandboxLost], None]) -> None:
        """Call back once, with the reason, when the instance's process is gone; at once if it is already."""

    async def kill(self) -> None:
        """End it and everything it started; returns when nothing is left of it. Idempotent."""

    async def autopsy(self) -> str:
        """Why an instance that is gone ended, as far as the runtime knows: exit code or signal, out of memory or
        not, and its last output. To be asked before `kill`."""

    async def output_tail(self) -> str:
        """The last lines that its processes printed, for error messages."""


class Runtime(Protocol):
    """Where sandboxes live. Safe to call from many tasks of one event loop."""

    name: str
    node: str
    """Machine that all its instances run on; empty where it chooses one for each."""

    async def isolation(self) -> Isolation:
        """What separates a sandbox from the host here.

        Raises:
            RuntimeUnavailable: this runtime cannot work on this machine.
        """

    async def start(self, spec: SandboxSpec, instance_id: str, floor: int) -> Instance:
        """Create the isolated instance; its agent listens (or will in a moment) and refuses tokens below `floor`.

        Raises:
            RuntimeUnavailable: this runtime cannot work on this machine.
            SocketPathTooLong: the instance's folder has too long a path.
            StartFailed: it could not be created; nothing is left behind.
        """

    async def adopt(self, spec: SandboxSpec, record: Mapping[str, Any]) -> Instance | None:
        """The instance that an earlier process of this fleet started, if it still runs; None when it is gone.

        Raises:
            RuntimeUnavailable: this runtime cannot tell, because its daemon does not answer.
        """

    async def sweep(self, keep: Collection[str]) -> list[str]:
        """Remove instances that belong to this fleet and that nobody knows; `keep` are the ids of known instances.

        Returns the ids of what was removed. Instances of others, and everything without this fleet's mark, stay.
        """

    async def strays(self, keep: Collection[str]) -> list[str]:
        """Ids of instances of this fleet that are there and that nobody knows, as in `sweep`; removes nothing.

        Raises:
            RuntimeUnavailable: this runtime cannot tell, because its daemon does not answer.
        """

    async def close(self) -> None:
        """End all instances and give back everything held. Idempotent."""
