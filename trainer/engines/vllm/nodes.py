"""vLLM servers on the nodes of a Ray cluster: an actor starts each where it has its devices, and leads requests to it.

A server listens on a Unix socket there, as here. The way to it is a relay on its node's Ray address, which carries what
begins with a random key; Ray itself carries starts and ends alone. Actors end with the process that placed them, and
their servers with them, however that ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rocknroll.sandbox.cluster import ClusterChoice, on_cluster
from rocknroll.sandbox.node_actor import versions
from rocknroll.sandbox.relay import Relay
from rocknroll.sandbox.runtimes.ray import check_versions
from rocknroll.trainer.demand import Demand, first_line, learner_demand, missing
from rocknroll.trainer.engines.base import EngineError
from rocknroll.trainer.engines.vllm.client import Behind
from rocknroll.trainer.engines.vllm.installation import find_installation
from rocknroll.trainer.engines.vllm.server import Server, Serving
from rocknroll.trainer.errors import ClusterTooSmall
from rocknroll.trainer.recipe import Recipe

LOOK_S = 0.25
"""Between two looks at whether a server is still there."""
LAST_WORDS_S = 5.0
STOP_S = 10.0


def engine_demand(recipe: Recipe) -> Demand:
    """The cores and accelerators of each engine."""
    gpus = recipe.engine.vllm.tensor_parallel_size if recipe.cluster.devices.engine is not None else 0
    each: dict[str, float] = {"CPU": float(recipe.engine.threads), **({"GPU": float(gpus)} if gpus else {})}
    return Demand("engine", [each] * recipe.engine.replicas)


@contextmanager
def engine_nodes(recipe: Recipe, choice: ClusterChoice) -> Iterator[EngineNodes]:
    """Places for a recipe's engines on a cluster, which is left afterwards.

    Raises:
        ClusterUnavailable: the cluster does not take this process.
        ClusterTooSmall: it has too little for the learner's ranks and the engines together.
    """
    with on_cluster(choice):
        nodes = EngineNodes(recipe)
        try:
            yield nodes
        finally:
            nodes.close()


class EngineNodes:
    """See `engine_nodes`; one bundle of a placement group for each engine."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe, self._demand = recipe, engine_demand(recipe)
        ranks = recipe.learner_ranks if recipe.learner_ranks > 1 else 0
        on_gpus = recipe.cluster.devices.learner is not None
        before = [learner_demand(ranks, gpus=on_gpus, own_node="node:here")] if ranks else []
        if lacking := missing([*before, self._demand], ray.cluster_resources()):
            raise ClusterTooSmall(f"The Ray cluster has too little: {lacking}. Add nodes, or take fewer engines.")
        self._group = placement_group([dict(bundle) for bundle in self._demand.bundles], strategy="PACK")

    def launch(self, seat: int, serving: Serving, log: Path | None) -> PlacedServer:
        """Start the server of a seat, and wait until its process is there.

        Raises:
            EngineError: it cannot be started.
        """
        limit_s = self._recipe.engine.vllm.start_timeout_s
        if not self._group.wait(limit_s):
            raise EngineError(
                f"engine {seat} got no place on the Ray cluster within {limit_s:g} s"
                f" (`engine.vllm.start_timeout_s`): {ray.available_resources()} is free. End what holds the rest, or"
                " take fewer engines."
            )
        bundle = self._demand.bundles[seat]
        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=seat)
        options = {"num_cpus": bundle["CPU"], "num_gpus": bundle.get("GPU", 0), "scheduling_strategy": place}
        actor = ray.remote(ServerActor).options(**options, max_restarts=0, max_concurrency=8).remote()
        return PlacedServer(actor, (self._recipe.engine, serving, log), limit_s)

    def close(self) -> None:
        """Give the places back."""
        remove_placement_group(self._group)


class PlacedServer:
    """A server on another node; see `server.Started`."""

    def __init__(self, actor: Any, work: Sequence[Any], limit_s: float) -> None:
        self._actor = actor
        try:
            told: Mapping[str, Any] = ray.get(actor.open.remote(*work), timeout=limit_s)
            check_versions(told["node"], told["versions"], versions())
        except Exception as failure:
            ray.kill(actor)
            raise EngineError(f"the vLLM server did not start on the cluster: {first_line(failure)}") from failure
        self.node: str = told["node"]
        self.address = Behind(*told["address"])
        self._end: Future[str] = actor.ended.remote().future()

    @property
    def ended(self) -> bool:
        """Whether the server, its actor or its node is gone."""
        return self._end.done()

    def last_words(self) -> str:
        """The end of its log, in one paragraph."""
        try:
            return self._end.result() if self.ended else str(ray.get(self._actor.words.remote(), timeout=LAST_WORDS_S))
        except (RayError, GetTimeoutError) as failure:
            return f"node {self.node} does not tell why: {first_line(failure)}"

    def stop(self) -> None:
        """Kill it and wait until that is done, unless its node does not answer; safe to call twice."""
        with suppress(RayError, GetTimeoutError):
            ray.get(self._actor.stop.remote(), timeout=STOP_S)
        ray.kill(self._actor)


class ServerActor:
    """Has one server on its node, and leads to it."""

    async def open(self, section: Any, serving: Serving, log: Path | None) -> Mapping[str, Any]:
        """Start the server, with the accelerators that Ray shows to this actor.

        Raises:
            RecipeError: there is no vLLM here as the recipe wants it.
            FileNotFoundError: there is no policy here where the run has it.
        """
        node = ray.util.get_node_ip_address()
        if not serving.model.is_dir():
            raise FileNotFoundError(
                f"node {node} has no {serving.model}, where the policy is: all nodes need it at the same path"
                " (a shared file system)"
            )
        installation = await asyncio.to_thread(find_installation, section.vllm.python)
        self._server = await asyncio.to_thread(Server, section, serving, installation, None, log)
        self._relay = Relay(lambda: True)
        host, port = await self._relay.listen(node)
        key = self._relay.admit(self._server.address)
        return {"node": node, "address": (host, port, key), "versions": versions()}

    async def ended(self) -> str:
        """Its last words, when it has ended."""
        while not self._server.ended:
            await asyncio.sleep(LOOK_S)
        return self._server.last_words()

    async def words(self) -> str:
        return self._server.last_words()

    async def stop(self) -> None:
        await asyncio.to_thread(self._server.stop)
