"""`roll train` with its sandboxes on two nodes of a Ray cluster, one of which is killed in the middle."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from clusters import choice, kill_raylet, small_cluster
from rolling import Roll, balance, rows

from rocknroll.trainer.cli.exit_codes import ExitCode

LIMIT_S = 480
"""Only ever waited in full when a test fails."""
pytestmark = [pytest.mark.long, pytest.mark.timeout(3 * LIMIT_S)]
ITERATIONS = 12
"""Enough that episodes are still to be played when the end of a node is noticed, which takes seconds."""
SANDBOXES = 6
RECIPE: Mapping[str, Any] = {
    "env": {
        "config": {"train_games": 12, "seen_games": 0, "unseen_games": 3, "max_steps": 10},
        "faults": {"latency_s": 0.1},
    },
    "policy": {"tiny": {"hidden_size": 32, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16}},
    "warmstart": {"games": 12, "epochs": 1},
    "sandbox": {"count": SANDBOXES, "reset_timeout_s": 60.0},
    "engine": {"slots": SANDBOXES},
    "rollout": {"num_groups": 3, "group_size": 2, "constrained": True, "progress_reward": 1.0, "infra_retries": 20},
    "learner": {"iterations": ITERATIONS},
    "eval": {"episodes": 3, "every": 0},
    "report_to": [],
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with small_cluster(SANDBOXES, SANDBOXES) as cluster:
        yield cluster


def test_a_run_survives_the_loss_of_a_node(cluster: Any, tmp_path: Path) -> None:
    roll = Roll(tmp_path)
    address = choice(cluster).address
    folder = roll.folder("nodes")
    running = roll.start("nodes", {**RECIPE, "cluster": {"address": address}})
    try:
        deadline_s = time.monotonic() + LIMIT_S
        while len(rows(folder)) < 2 and running.poll() is None:
            assert time.monotonic() < deadline_s, "the run has not begun to learn"
            time.sleep(0.1)
        kill_raylet(next(iter(cluster.worker_nodes)))
        _, said = running.communicate(timeout=LIMIT_S)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == ExitCode.OK, said
    assert f"the Ray cluster at {address} is used: `cluster.address` names it" in " ".join(said.split())
    assert [json.loads(row)["iteration"] for row in rows(folder)] == list(range(1, ITERATIONS + 1))
    found = balance(folder)
    assert found is not None and found.infra_error.keys() <= {"node_lost", "lease_lost"}, found.infra_error
    assert found.infra_error.get("node_lost", 0) > 0
