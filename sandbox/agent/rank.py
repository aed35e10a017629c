"""The agent ranks before what it starts when cpu is short, and behind it when memory is.

Hundreds of busy processes then keep it neither from answering nor from ending them, and the kernel
that lacks memory ends one of theirs.
"""

from __future__ import annotations

import contextlib
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST = -20
SACRIFICE = b"1000"


class Rank:
    """To be made before the process forbids its inspection, after which it cannot open its own file any more."""

    def __init__(self) -> None:
        self._oom = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        self._kept = os.pread(self._oom, 16, 0)
        # Where it may not be taken (CAP_SYS_NICE), whoever started this process may have given it.
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, FIRST)
        # A priority above the usual is not handed down.
        os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))

    def lower(self) -> None:
        """Come first when memory is short; in a forked child for good."""
        os.pwrite(self._oom, SACRIFICE, 0)

    @contextlib.contextmanager
    def lowered(self) -> Iterator[None]:
        """What is executed meanwhile comes first when memory is short."""
        self.lower()
        try:
            yield
        finally:
            os.pwrite(self._oom, self._kept, 0)
