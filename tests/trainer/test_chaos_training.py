"""`roll train` under fire from start to end: steps raise and hang, sandboxes are killed, the engine breaks down."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from rolling import LIMIT_S, Roll, balance, rollouts_pid, rows

from rocknroll.trainer.cli.exit_codes import ExitCode

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LIMIT_S)]
ITERATIONS = 6
KILL_EVERY_S = 1.0
RECIPE: Mapping[str, Any] = {
    "env": {
        "config": {"train_games": 12, "seen_games": 0, "unseen_games": 3, "max_steps": 10},
        "faults": {"error_rate": 0.1, "hang_rate": 0.02, "latency_s": 0.02},
    },
    "policy": {"tiny": {"hidden_size": 32, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16}},
    "warmstart": {"games": 12, "epochs": 1},
    "sandbox": {"count": 8, "step_timeout_s": 2.0, "reset_timeout_s": 60.0},
    "engine": {"slots": 8, "restarts": 1},
    "rollout": {
        "num_groups": 3,
        "group_size": 2,
        "async_ratio": 1.0,
        "constrained": True,
        "progress_reward": 1.0,
        "infra_retries": 100,
        "max_infra_error_rate": 1.0,
    },
    "learner": {"iterations": ITERATIONS},
    "eval": {"episodes": 3, "every": 4},
    "report_to": [],
}
BREAKABLE = '''
"""On SIGUSR1 the worker thread of this process's engine fails as by a fault in its own code."""
import gc
import signal


def break_the_engine(number, frame):
    from rocknroll.trainer.engines.local import LocalEngine

    def fail():
        raise MemoryError("broken on purpose")

    for thing in gc.get_objects():
        if type(thing) is LocalEngine:
            thing._post(fail)


signal.signal(signal.SIGUSR1, break_the_engine)
'''


@pytest.fixture
def roll(tmp_path: Path) -> Roll:
    (tmp_path / "sitecustomize.py").write_text(BREAKABLE)
    return Roll(tmp_path, on_path=str(tmp_path))


def sandboxes(rollouts: int) -> list[psutil.Process]:
    """What runs in the process sandboxes of a run: everything below the server that forks them."""
    (server,) = (child for child in psutil.Process(rollouts).children() if "forkserver" in " ".join(child.cmdline()))
    return server.children(recursive=True)


def test_training_goes_on_to_the_end(roll: Roll) -> None:
    folder, rng, kills, broken = roll.folder("fire"), random.Random(0), 0, False
    running = roll.start("fire", RECIPE)
    began = time.monotonic()
    while running.poll() is None and time.monotonic() < began + LIMIT_S:
        time.sleep(KILL_EVERY_S)
        rollouts = rollouts_pid(folder)
        if rollouts is None:
            continue
        if len(rows(folder)) >= ITERATIONS // 2 and not broken:
            os.kill(rollouts, signal.SIGUSR1)
            broken = True
        with suppress(psutil.NoSuchProcess, IndexError, ValueError):  # not there yet, or no more
            rng.choice(sandboxes(rollouts)).kill()
            kills += 1
    _, said = running.communicate(timeout=LIMIT_S)
    assert running.returncode == ExitCode.OK, said
    assert broken
    assert kills >= ITERATIONS / 2
    assert len(rows(folder)) == ITERATIONS
    found = balance(folder)
    assert found is not None
    assert (found.trained, found.pending) == (ITERATIONS * 6, 0)
    assert found.infra_error.keys() >= {"env_error", "env_hung"}, found.infra_error
    assert found.infra_error.keys() & {"sandbox_lost", "env_crashed", "lease_lost"}, found.infra_error
    assert sum(json.loads(row)["faults/engine_restart"] for row in rows(folder)) == 1
