"""Whose process is whose, and the end of everything that one command started.

Every process that the agent starts carries a mark: its soft limit of file locks, which Linux has not
enforced since 2.4 and nobody sets, which fork and exec hand down, and which /proc shows to
everybody. So a grandchild is found that left its process group and session, lost its parent and
cleaned its environment. Whoever changes its mark belongs to its parent, and without one to nobody:
such strays end with the first hunt. The agent has to be the reaper of its orphans (PID 1 or subreaper).
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any

    from .loop import Loop

RLIMIT_LOCKS = 10
OWNER_BITS, RUN_BITS = 20, 20
STRAY = -1
FREEZE_ROUNDS = 50
KILL_ROUNDS = 200
KILL_PAUSE_S = 0.005
_ME = os.getpid


class Marks:
    """Gives out marks: a random base, so that nested agents do not take theirs for ours, an owner, and a run of it."""

    def __init__(self) -> None:
        self._hard = resource.getrlimit(RLIMIT_LOCKS)[1]
        if self._hard not in (resource.RLIM_INFINITY, -1) and self._hard < 1 << 62:
            raise OSError(f"the hard limit of file locks is {self._hard}; processes cannot be marked with it")
        self._base = int.from_bytes(os.urandom(2), "big") | 1 << 20
        self._owners = 0

    def owner(self) -> int:
        """A new one."""
        self._owners = self._owners % ((1 << OWNER_BITS) - 1) + 1
        return self._owners

    def mark(self, owner: int, run: int = 0) -> int:
        """The number that processes of this owner, and of this run of it, carry."""
        return (self._base << OWNER_BITS | owner) << RUN_BITS | run % (1 << RUN_BITS)

    def put_on(self, mark: int) -> None:
        """What this process forks from now on carries the mark."""
        resource.setrlimit(RLIMIT_LOCKS, (mark, self._hard))

    def owner_of(self, mark: int | None) -> int:
        """Whose mark it is; STRAY when it is none of ours."""
        if mark is None or mark >> (OWNER_BITS + RUN_BITS) != self._base:
            return STRAY
        return mark >> RUN_BITS & ((1 << OWNER_BITS) - 1)


def parents() -> dict[int, int]:
    """Living processes and their parents; zombies are dead."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields and fields[0] not in b"ZX":
                found[int(name)] = int(fields[1])
    return found


def mark_of(pid: int) -> int | None:
    """None: it is gone or has no such mark."""
    try:
        with open(f"/proc/{pid}/limits", "rb") as file:
            text = file.read()
    except OSError:
        return None
    value = text.partition(b"Max file locks")[2].split(None, 1)[:1]
    return int(value[0]) if value and value[0].isdigit() else None


class Kin:
    """One process below the agent: its mark, its owner, and the processes above it, nearest first."""

    __slots__ = ("above", "mark", "owner")

    def __init__(self, mark: int | None, owner: int, above: tuple[int, ...]) -> None:
        self.mark, self.owner, self.above = mark, owner, above


def family(marks: Marks) -> dict[int, Kin]:
    """All living processes below this one, which is all that it ever started."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return {}  # the usual case, without a look at every process
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found: dict[int, Kin] = {}
    waiting: list[tuple[int, Kin | None, int]] = [(pid, None, 0) for pid in children.get(_ME(), ())]
    while waiting:
        pid, parent_kin, parent = waiting.pop()
        mark = mark_of(pid)
        owner = marks.owner_of(mark)
        above: tuple[int, ...] = ()
        if parent_kin is not None:
            above = (parent, *parent_kin.above)
            if owner == STRAY:
                owner, mark = parent_kin.owner, parent_kin.mark
        kin = found[pid] = Kin(mark, owner, above)
        waiting += [(child, kin, pid) for child in children.get(pid, ())]
    return found


def send(pid: int, number: int) -> None:
    """A signal, to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


class Hunt:
    """Ends every process below the agent that `prey` picks, and all that they start meanwhile.

    First they are all stopped, however fast they fork: a killed one would only make room for the
    next. When this is constructed they can do nothing any more; `done` is called once none is left.
    """

    def __init__(self, loop: Loop, marks: Marks, prey: Callable[[int, Kin], bool], done: Callable[[], Any]) -> None:
        self._loop, self._marks, self._prey, self._done = loop, marks, prey, done
        self._rounds = KILL_ROUNDS
        self._round()

    def _find(self) -> set[int]:
        return {pid for pid, kin in family(self._marks).items() if self._prey(pid, kin)}

    def _round(self) -> None:
        stopped: set[int] = set()
        for _ in range(FREEZE_ROUNDS):
            new = self._find() - stopped
            if not new:
                break
            for pid in new:
                send(pid, signal.SIGSTOP)
            stopped |= new
        for pid in stopped:
            send(pid, signal.SIGKILL)
        self._rounds -= 1
        if stopped and self._rounds:
            self._loop.later(KILL_PAUSE_S, self._round)
        else:
            self._done()


def hunt_owner(
    loop: Loop,
    marks: Marks,
    owner: int,
    done: Callable[[], Any],
    run: int | None = None,
    spare: Collection[int] = (),
) -> None:
    """End all of one owner, or of one run of it, and strays; not the processes in `spare`."""

    def prey(pid: int, kin: Kin) -> bool:
        if pid in spare:
            return False
        return kin.owner == STRAY or (kin.owner == owner and (run is None or kin.mark == marks.mark(owner, run)))

    Hunt(loop, marks, prey, done)


def adopt_orphans() -> None:
    """Descendants whose parent ended become children of this process (PR_SET_CHILD_SUBREAPER)."""
    import ctypes

    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def forbid_inspection() -> None:
    """Processes of this one's own user may not read its memory, environment or descriptors (PR_SET_DUMPABLE 0)."""
    import ctypes

    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
