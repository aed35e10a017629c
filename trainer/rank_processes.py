"""Ranks 1 and up of a learner as processes of this machine: started, watched, and ended with rank 0.

A rank ends when the pipe to rank 0 closes, whatever it is doing, so a killed `roll train` leaves none behind. Ctrl-C is
rank 0's: the others learn from it when to stop.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol

from rocknroll.trainer.errors import LearnerRankLost
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.rollout import forking

LOCALHOST = "127.0.0.1"
LOADING_S = 300.0
"""How long a rank may take to load libraries and model."""
ENDING_S = 10.0
"""How long a rank may take to end by itself when rank 0 has."""


@dataclass(frozen=True)
class RankTask:
    """What a rank learns, the same for all."""

    recipe: Recipe
    policy: Path
    run_dir: Path
    max_staleness: int = 0
    """Versions that a token may be behind."""
    resume: bool = False


class OtherRanks(Protocol):
    """The ranks besides rank 0."""

    def ready(self) -> None:
        """Wait until all have loaded what they need.

        Raises:
            LearnerRankLost: one died, or takes too long.
        """

    def first_dead(self, within_s: float) -> str | None:
        """Which rank is dead, or dies within that time, and of what, as a sentence; None: all live."""

    def silent(self, within_s: float) -> str | None:
        """Which ranks have not ended after that time, though all others wait for them in vain; None: all have."""

    def stop(self) -> None:
        """End all; those that have learned their last step get the time to end by themselves."""

    def kill(self) -> None:
        """End all at once."""


class RankProcesses:
    """`OtherRanks` as processes of this machine."""

    def __init__(self, task: RankTask, host: str, port: int, size: int) -> None:
        """The ranks meet at `host`:`port`."""
        self._size = size
        self._said: dict[int, str] = {}
        self._processes: dict[int, BaseProcess] = {}
        self._connections: dict[int, Connection] = {}
        for rank in range(1, size):
            ours, theirs = Pipe()
            process = forking.process(_serve, theirs, task, rank, size, host, port, name=f"learner rank {rank}")
            process.start()
            theirs.close()
            self._processes[rank], self._connections[rank] = process, ours

    @property
    def pids(self) -> Sequence[int]:
        """Process ids in the order of ranks, from rank 1."""
        return [process.pid for process in self._processes.values() if process.pid is not None]

    def ready(self) -> None:
        for rank, connection in self._connections.items():
            wait([connection, self._processes[rank].sentinel], LOADING_S)
            said = self._hear(rank)
            if said != "ready":
                lost = (
                    self.first_dead(ENDING_S) or f"Learner rank {rank} of {self._size} did not load in {LOADING_S:g} s."
                )
                raise LearnerRankLost(lost)

    def first_dead(self, within_s: float) -> str | None:
        ended = wait([process.sentinel for process in self._processes.values()], within_s)
        for process in self._processes.values():
            if process.sentinel in ended:
                process.join(within_s)  # its end of a pipe closes shortly before its exit code is known
        dead = [rank for rank, process in self._processes.items() if process.exitcode not in (None, 0)]
        # When one dies the others fail, too: their connections to it break.
        dead.sort(key=lambda rank: (self._processes[rank].exitcode or 0) > 0)
        return self._obituary(dead[0]) if dead else None

    def silent(self, within_s: float) -> str | None:
        deadline_s = time.monotonic() + within_s
        for process in self._processes.values():
            process.join(max(0.0, deadline_s - time.monotonic()))
        alive = [f"{rank} (process {one.pid})" for rank, one in self._processes.items() if one.is_alive()]
        return hanging(alive, self._size)

    def stop(self) -> None:
        for process in self._processes.values():
            process.join(ENDING_S)
        for connection in self._connections.values():
            connection.close()
        for process in self._processes.values():
            if process.is_alive():
                process.kill()
            process.join()

    def kill(self) -> None:
        """End all at once."""
        for process in self._processes.values():
            process.kill()
        self.stop()

    def _hear(self, rank: int) -> str | None:
        """What the rank has said last, if anything."""
        connection = self._connections[rank]
        with suppress(EOFError, OSError):
            while connection.poll():
                self._said[rank] = connection.recv()
        return self._said.get(rank)

    def _obituary(self, rank: int) -> str:
        process = self._processes[rank]
        code = process.exitcode or 0
        said = self._hear(rank)
        why = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"failed ({said or f'exit code {code}'})"
        return f"Learner rank {rank} of {self._size} (process {process.pid}) {why}."


def hanging(ranks: Sequence[str], size: int) -> str | None:
    """What is said of ranks that hang."""
    return f"Learner rank {', '.join(ranks)} of {size} did not answer the others." if ranks else None


def _serve(connection: Connection, task: RankTask, rank: int, size: int, host: str, port: int) -> None:
    """Entry point of a rank's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    from rocknroll.trainer.learning import follow

    try:
        follow(task, rank, size, host, port, lambda: connection.send("ready"))
    except Exception as failure:
        with suppress(OSError):
            connection.send(f"{type(failure).__name__}: {failure}")
        raise SystemExit(1) from failure


def _end_with(connection: Connection) -> None:
    """Exit when rank 0 closes the pipe, or is gone."""
    with suppress(EOFError, OSError):
        connection.recv()
    os._exit(1)
