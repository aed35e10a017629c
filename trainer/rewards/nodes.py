"""Reward workers on the nodes of a Ray cluster: an actor each, spread over the nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rocknroll.sandbox.cluster import ClusterChoice, on_cluster
from rocknroll.trainer.demand import Demand, first_line, missing
from rocknroll.trainer.errors import ClusterTooSmall
from rocknroll.trainer.rewards.evaluation import learn
from rocknroll.trainer.rewards.workers import IMPORT_TIMEOUT_S, WorkerDied

T = TypeVar("T")


@asynccontextmanager
async def reward_nodes(function: str, workers: int, choice: ClusterChoice) -> AsyncIterator[RewardNodes]:
    """Workers on a cluster, which is left afterwards.

    Raises:
        ClusterUnavailable: the cluster does not take this process.
        ClusterTooSmall: it has too few cores.
    """
    with on_cluster(choice):
        nodes = RewardNodes(function, workers)
        try:
            yield nodes
        finally:
            await nodes.close()


class RewardNodes:
    """See `workers.Workers`; an actor that timed out, died or was given up is replaced when its place is next used."""

    def __init__(self, function: str, workers: int) -> None:
        demand = Demand("reward", [{"CPU": 1.0}] * workers)
        if lacking := missing([demand], ray.cluster_resources()):
            raise ClusterTooSmall(f"The Ray cluster has too little: {lacking}. Add nodes, or take fewer workers.")
        self._function = function
        self._closed = False
        self._group = placement_group([dict(bundle) for bundle in demand.bundles], strategy="SPREAD")
        self._actors: dict[int, Any] = {}
        self._free: asyncio.Queue[int] = asyncio.Queue()
        for place in range(workers):
            self._free.put_nowait(place)

    def submit(self, call: Callable[..., T], *args: Any, timeout_s: float) -> asyncio.Future[T]:
        if self._closed:
            raise RuntimeError("the reward workers are closed")
        return asyncio.ensure_future(self._run(call, args, timeout_s))

    async def close(self) -> None:
        self._closed = True
        for place in list(self._actors):
            self._drop(place)
        await asyncio.to_thread(remove_placement_group, self._group)

    async def _run(self, call: Callable[..., T], args: tuple[Any, ...], timeout_s: float) -> T:
        place = await self._free.get()
        try:
            actor = await self._at(place)
            answer: T = await _result(actor.run.remote(call, *args), timeout_s)
            return answer
        except RayError as failure:
            self._drop(place)
            raise WorkerDied(first_line(failure)) from failure
        except (TimeoutError, asyncio.CancelledError):
            self._drop(place)
            raise
        finally:
            self._free.put_nowait(place)

    async def _at(self, place: int) -> Any:
        """The actor of a place, which has learnt the function."""
        if place not in self._actors:
            seat = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=place)
            options = {"num_cpus": 1, "max_restarts": 0, "scheduling_strategy": seat}
            self._actors[place] = ray.remote(RewardActor).options(**options).remote()
            try:
                await _result(self._actors[place].run.remote(learn, self._function), IMPORT_TIMEOUT_S)
            except TimeoutError:
                self._drop(place)
                raise WorkerDied(f"it did not import the function in {IMPORT_TIMEOUT_S:g} s") from None
        return self._actors[place]

    def _drop(self, place: int) -> None:
        if (actor := self._actors.pop(place, None)) is not None:
            ray.kill(actor)


async def _result(reference: Any, timeout_s: float) -> Any:
    return await asyncio.wait_for(asyncio.wrap_future(reference.future()), timeout_s)


class RewardActor:
    """A process of Ray's that does what it is told."""

    def run(self, call: Callable[..., T], *args: Any) -> T:
        return call(*args)
