"""Who commands run as and files belong to: the agent itself, or another user when the agent is root.

The agent may become that user (CAP_SETUID, CAP_SETGID) but may not pass over file permissions. So
while it touches files for a request it takes on the user's file system identity (setfsuid), which
asks and owns as the user does, and leaves everything else, signals above all, to root.
"""

from __future__ import annotations

import contextlib
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class Identity:
    """`uid:gid`; None or `root`: who the agent is."""

    def __init__(self, wanted: str | None) -> None:
        self.arguments: dict[str, Any] = {}
        """For `subprocess.Popen`."""
        self._ids: tuple[int, int] | None = None
        self._libc: Any = None
        if wanted and wanted != "root":
            uid, _, gid = wanted.partition(":")
            self._ids = (int(uid), int(gid))
            self.arguments = {"user": int(uid), "group": int(gid), "extra_groups": []}
            import ctypes  # a MiB that only such an agent pays

            self._libc = ctypes.CDLL(None)
            os.setgroups([])

    def become(self) -> None:
        """For good; in a forked child."""
        if self._ids is not None:
            uid, gid = self._ids
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)

    @contextlib.contextmanager
    def files(self) -> Iterator[None]:
        """What is opened, made or removed meanwhile is so by the user.

        Raises:
            OSError: the identity could not be taken on.
        """
        if self._ids is None:
            yield
            return
        uid, gid = self._ids
        try:
            self._libc.setfsgid(gid)
            self._libc.setfsuid(uid)
            # Both return the identity before, and an invalid one changes nothing: the only way to see it.
            if self._libc.setfsuid(-1) != uid or self._libc.setfsgid(-1) != gid:
                raise OSError(f"the agent cannot act on files as {uid}:{gid}")
            yield
        finally:
            self._libc.setfsuid(os.geteuid())
            self._libc.setfsgid(os.getegid())
