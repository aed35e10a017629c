"""`roll train` with two ranks: a rank is killed, the run goes on by itself; Ctrl-C, and it is resumed to the end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from rolling import LIMIT_S, Roll, balance, family, rollouts_pid, rows
from test_kill import RECIPE

from rocknroll.trainer.cli.exit_codes import ExitCode
from rocknroll.trainer.run_folder import RunFolder

TWO_RANKS: dict[str, Any] = {
    **RECIPE,
    "learner": {**RECIPE["learner"], "ranks": 2, "iterations": 5, "restarts": 1},
    "checkpoint_every": 1,
}

pytestmark = [pytest.mark.long, pytest.mark.timeout(8 * LIMIT_S)]


def test_a_run_outlives_a_rank_and_is_stopped_and_resumed(tmp_path: Path) -> None:
    roll = Roll(tmp_path)
    folder = roll.folder("two")
    running = roll.start("two", TWO_RANKS)
    try:
        strike(running, folder)
    finally:
        for process in family(running.pid):
            process.kill()
    roll.to_the_end("two", TWO_RANKS)
    assert len(rows(folder)) == 5
    balanced = balance(folder)
    assert balanced is not None and balanced.trained == 5 * 3 * 2


def strike(running: subprocess.Popen[str], folder: RunFolder) -> None:
    """Kill the second rank, and stop the run when it has gone on."""
    until(lambda: len(rows(folder)) >= 1, running)
    rank = second_rank(running.pid, folder)
    os.kill(rank.pid, signal.SIGKILL)
    until(lambda: len(rows(folder)) >= 3, running)
    assert second_rank(running.pid, folder) != rank
    ours = family(running.pid)
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=LIMIT_S)
    assert running.returncode == ExitCode.INTERRUPTED, said
    assert f"Learner rank 1 of 2 (process {rank.pid}) was killed by SIGKILL" in said
    _, left = psutil.wait_procs(ours, timeout=LIMIT_S)
    assert not left


def second_rank(pid: int, folder: RunFolder) -> psutil.Process:
    """Of the processes that are forked from the run's server the one that does not write the ledger."""
    found: list[psutil.Process] = []

    def is_there() -> bool:
        servers = [c for c in psutil.Process(pid).children() if "multiprocessing.forkserver" in " ".join(c.cmdline())]
        forked = [process for server in servers for process in server.children()]
        found[:] = [process for process in forked if process.pid != rollouts_pid(folder)]
        return len(found) == 1 and len(forked) == 2

    until(is_there, None)
    return found[0]


def until(condition: Callable[[], bool], running: subprocess.Popen[str] | None) -> None:
    deadline_s = time.monotonic() + 3 * LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        assert running is None or running.poll() is None, running.stderr.read() if running.stderr else ""
        time.sleep(0.05)
