"""How the agent starts processes: marked, as the sandbox's user, in a session of their own."""

from __future__ import annotations

import os
import signal
import subprocess

from .frames import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from .identity import Identity
    from .processes import Marks
    from .rank import Rank


class Spawner:
    """Knows who to become and how to mark. Descriptors are the caller's, who closes them."""

    def __init__(self, marks: Marks, identity: Identity, rank: Rank) -> None:
        self._marks, self._identity, self._rank = marks, identity, rank

    def program(
        self,
        argv: Sequence[str],
        cwd: str,
        variables: Mapping[str, str],
        mark: int,
        streams: tuple[int, int, int],
        keep: Sequence[int] = (),
    ) -> int:
        """Start a program on (stdin, stdout, stderr) and return its pid; `keep` stay open in it.

        Raises:
            Refused: it cannot be started.
        """
        self._marks.put_on(mark)
        try:
            with (
                self._rank.lowered(),
                self._identity.files(),
            ):  # or the working directory is entered by a root without rights
                process = subprocess.Popen(
                    argv,
                    stdin=streams[0],
                    stdout=streams[1],
                    stderr=streams[2],
                    pass_fds=keep,
                    cwd=cwd,
                    env=variables,
                    start_new_session=True,
                    **self._identity.arguments,
                )
        except (OSError, ValueError) as error:
            raise Refused("exec_failed", f"cannot run {list(argv[:1])!r}: {error}") from None
        process.returncode = 0  # The loop collects it; Popen must not.
        return process.pid

    def fork(
        self,
        work: Callable[[], Any],
        mark: int,
        streams: tuple[int, int, int],
        keep: Mapping[int, int],
        cwd: str | None,
    ) -> int:
        """Run `work` in a fork of the agent, which exits with what it returns, and return its pid.

        `keep`: descriptors here, by their number there (above 2); no other stays open.

        Raises:
            Refused: there is no room for another process.
        """
        self._marks.put_on(mark)
        try:
            pid = os.fork()
        except OSError as error:
            raise Refused("exec_failed", f"cannot start another process: {error}") from None
        if pid == 0:
            status = 1
            try:
                self._rank.lower()
                signal.set_wakeup_fd(-1)
                for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
                    signal.signal(number, signal.SIG_DFL)
                os.setsid()
                _arrange({0: streams[0], 1: streams[1], 2: streams[2], **keep})
                self._identity.become()
                if cwd is not None:
                    os.chdir(cwd)
                status = int(work() or 0)
            except BaseException as error:
                os.write(2, f"{error}\n".encode())
            finally:
                os._exit(status)
        return pid


def _arrange(wanted: Mapping[int, int]) -> None:
    """Descriptors by their new number, inheritable; all others are closed."""
    moved = {}
    for new, old in wanted.items():
        while (moved_to := os.dup(old)) in wanted:
            continue  # it is overwritten below
        moved[new] = moved_to
    for new, old in moved.items():
        os.dup2(old, new, inheritable=True)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in wanted:
            try:
                os.close(int(name))
            except OSError:
                continue
