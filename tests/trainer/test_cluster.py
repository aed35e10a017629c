"""Ranks of the learner on a Ray cluster: placed, equal to one process's, watched, and told what a cluster lacks."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from learner_cases import Recording, rows
from several_ranks import alone, batches, saved_policy, task

from rocknroll.trainer.cluster import Demand, RankActors, learner_demand, missing
from rocknroll.trainer.errors import ClusterTooSmall, LearnerRankLost
from rocknroll.trainer.learning import learner_of

STORE_BYTES = 80 << 20
"""The least that Ray takes; nothing is ever stored."""
SMALL = {"object_store_memory": STORE_BYTES}
CLOSE = 1e-5

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head with a core, and a second node with one."""
    import ray
    from ray.cluster_utils import Cluster

    import rocknroll

    where = os.pathsep.join([str(Path(rocknroll.__file__).parents[1]), str(Path(__file__).parent)])
    quiet = {"RAY_prestart_worker_first_driver": "0", "PYTHONPATH": where}
    before = {name: os.environ.get(name) for name in quiet}
    os.environ.update(quiet)
    made = Cluster(initialize_head=True, head_node_args={**SMALL, "num_cpus": 1, "include_dashboard": False})
    try:
        made.add_node(**SMALL, num_cpus=1)
        ray.init(address=made.address, namespace="rocknroll", log_to_driver=False)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_policy(tmp_path_factory.mktemp("policy") / "saved")


def test_two_ranks_on_two_nodes_give_the_loss_of_one(cluster: Any, policy: Path, tmp_path: Path) -> None:
    one, two = Recording(batches), Recording(batches)
    alone(task(tmp_path / "one", policy), one)
    placed = task(tmp_path / "two", policy, learner={"ranks": 2}, cluster={"address": cluster.address})
    with learner_of(placed, two) as learner:  # type: ignore[arg-type]
        learner.learn()
    expected = [row["loss"] for row in rows(tmp_path / "one")]
    assert [row["loss"] for row in rows(tmp_path / "two")] == pytest.approx(expected, abs=CLOSE)
    assert two.calls == one.calls


def test_an_actor_that_is_killed_ends_the_run_by_name(cluster: Any, policy: Path, tmp_path: Path) -> None:
    def kill(version: int) -> None:
        if version == 1:
            # Of a process that ends meanwhile there is no command line.
            found = psutil.process_iter(["cmdline"])
            (victim,) = [p for p in found if "ray::RankActor" in " ".join(p.info["cmdline"] or [])]
            os.kill(victim.pid, signal.SIGKILL)

    stream = Recording(batches)
    stream.on_batch = kill
    placed = task(tmp_path, policy, learner={"ranks": 2}, cluster={"address": cluster.address})
    with (
        pytest.raises(LearnerRankLost, match=r"rank 1 of 2 \(process \d+ on node \S+\) died"),
        learner_of(placed, stream) as learner,  # type: ignore[arg-type]
    ):
        learner.learn()


def test_a_cluster_that_is_too_small_is_told_with_what_is_missing(cluster: Any, policy: Path, tmp_path: Path) -> None:
    many = task(tmp_path, policy, learner={"ranks": 4, "minibatches": 1})
    with pytest.raises(ClusterTooSmall, match=r"learner: 4 CPU for 4 processes, 2 left of 2, 2 missing"):
        RankActors(many, "127.0.0.1", 1, 4, gpus=False)
    with pytest.raises(ClusterTooSmall, match=r"learner: 2 GPU for 2 processes, 0 left of 0, 2 missing"):
        RankActors(many, "127.0.0.1", 1, 2, gpus=True)


def test_what_is_missing_is_told_by_role() -> None:
    learner = learner_demand(2, gpus=True, own_node="node:here")
    engine = Demand("engine", [{"GPU": 1.0}] * 3)
    assert missing([learner, engine], {"CPU": 4, "GPU": 5}) == ""
    said = missing([learner, engine], {"CPU": 1, "GPU": 4})
    assert said == (
        "learner: 2 CPU for 2 processes, 1 left of 1, 1 missing; engine: 3 GPU for 3 processes, 2 left of 4, 1 missing"
    )
