"""Runs a server that must not outlive whoever started it. Standard library only; a program of its own.

    python keeper.py CORES COMMAND...

CORES are the CPU cores that the server is held to (`0,2`), or empty. The keeper leads a process group. When its
standard input ends, because the starter closed it or died of anything, or when the server ends, the whole group is
killed: the server's worker processes, too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading

PR_SET_PDEATHSIG = 1


def die_with_keeper() -> None:
    """In the server, before it runs: a keeper that was itself killed takes it along."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def end_group() -> None:
    os.killpg(0, signal.SIGKILL)


def wait_for_starter() -> None:
    while os.read(0, 4096):
        pass
    end_group()


def main() -> None:
    cores, *command = sys.argv[1:]
    if cores:
        os.sched_setaffinity(0, map(int, cores.split(",")))
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=die_with_keeper)
    threading.Thread(target=wait_for_starter, daemon=True).start()
    code = server.wait()
    print(f"the server ended with exit code {code}", file=sys.stderr, flush=True)
    end_group()


if __name__ == "__main__":
    main()
