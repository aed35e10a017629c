"""Ranks of the learner as actors on a placement group of a Ray cluster.

Ray places and watches; what the ranks say to one another goes through torch.distributed, as between processes of one
machine. Rank 0 stays the process that `roll` runs in, whose node has a place in the group kept for it. The actors are
this process's: they end with it, however it ends.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import ray
import torch
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rocknroll.trainer.demand import Bundle, first_line, learner_demand, missing
from rocknroll.trainer.errors import ClusterTooSmall, LearnerRankLost
from rocknroll.trainer.rank_processes import ENDING_S, LOADING_S, RankTask, hanging


class RankActors:
    """`rank_processes.OtherRanks` on the cluster that this process has joined."""

    def __init__(self, task: RankTask, host: str, port: int, size: int, *, gpus: bool) -> None:
        """The ranks meet at `host`:`port`, which is this process's.

        Raises:
            ClusterTooSmall: the cluster has too little for them, or the little is elsewhere.
        """
        self._size = size
        demand = learner_demand(size, gpus=gpus, own_node=f"node:{ray.util.get_node_ip_address()}")
        lacking = missing([demand], ray.cluster_resources())
        if lacking:
            raise ClusterTooSmall(
                f"The Ray cluster has too little: {lacking}. Add nodes, or take fewer `learner.ranks`."
            )
        self._group = placement_group([dict(bundle) for bundle in demand.bundles], strategy="PACK")
        if not self._group.wait(LOADING_S):
            remove_placement_group(self._group)
            raise ClusterTooSmall(
                f"The Ray cluster has what the {size} ranks of the learner need, and it was not free within"
                f" {LOADING_S:g} s: {ray.available_resources()} is. End what holds the rest, or take fewer ranks."
            )
        self._keeper = self._place(0, demand.bundles[0]) if gpus else None
        self._actors = {rank: self._place(rank, demand.bundles[rank]) for rank in range(1, size)}
        self._seats = {rank: actor.seat.remote() for rank, actor in self._actors.items()}
        self._where: dict[int, str] = {}
        self._work = {rank: (task, rank, size, host, port, gpus) for rank in self._actors}
        self._runs: dict[int, Any] = {}

    def ready(self) -> None:
        for rank, seat in self._seats.items():
            try:
                self._where[rank] = ray.get(seat, timeout=LOADING_S)
            except (RayError, GetTimeoutError) as failure:
                raise LearnerRankLost(
                    f"Learner rank {rank} of {self._size} did not load: {first_line(failure)}"
                ) from None
        self._runs = {rank: self._actors[rank].follow.remote(*work) for rank, work in self._work.items()}

    @property
    def device(self) -> torch.device:
        """Of rank 0: the accelerator that Ray keeps for it, which it gives to nobody else."""
        if self._keeper is None:
            return torch.device("cpu")
        return torch.device("cuda", ray.get(self._keeper.gpu.remote(), timeout=LOADING_S))

    @property
    def where(self) -> Mapping[int, str]:
        """Node and process of each rank, once they are ready."""
        return self._where

    def first_dead(self, within_s: float) -> str | None:
        ray.wait(list(self._runs.values()), num_returns=1, timeout=within_s)
        found: list[tuple[bool, str]] = []
        for rank, run in self._runs.items():
            done, _ = ray.wait([run], timeout=0)
            if done and (why := _failure(run)) is not None:
                fell_over = "RuntimeError" in why  # its connection to the one that died broke
                found.append((fell_over, f"Learner rank {rank} of {self._size} ({self._where[rank]}) {why}"))
        return min(found)[1] if found else None

    def silent(self, within_s: float) -> str | None:
        _, running = ray.wait(list(self._runs.values()), num_returns=len(self._runs), timeout=within_s)
        return hanging(
            [f"{rank} ({self._where[rank]})" for rank, run in self._runs.items() if run in running], self._size
        )

    def stop(self) -> None:
        if self._runs:
            ray.wait(list(self._runs.values()), num_returns=len(self._runs), timeout=ENDING_S)
        self.kill()

    def kill(self) -> None:
        """End all at once."""
        for actor in (*self._actors.values(), *([] if self._keeper is None else [self._keeper])):
            ray.kill(actor)
        remove_placement_group(self._group)

    def _place(self, rank: int, bundle: Bundle) -> Any:
        seat = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=rank)
        options = {"num_cpus": bundle["CPU"], "num_gpus": bundle.get("GPU", 0), "scheduling_strategy": seat}
        return ray.remote(RankActor).options(**options, max_restarts=0).remote()


class RankActor:
    """One rank, in a process of Ray's."""

    def seat(self) -> str:
        """Load what a rank needs; where this is."""
        import rocknroll.trainer.learning  # noqa: F401

        return f"process {os.getpid()} on node {ray.util.get_node_ip_address()}"

    def gpu(self) -> int:
        """Number of the accelerator that Ray gave this actor, on its node."""
        (own,) = ray.get_gpu_ids()
        return int(own)

    def follow(self, task: RankTask, rank: int, size: int, host: str, port: int, gpus: bool) -> None:
        """Be that rank until the learner ends."""
        from rocknroll.trainer.learning import follow

        # Ray shows an actor its own accelerator alone.
        follow(task, rank, size, host, port, lambda: None, torch.device("cuda", 0) if gpus else torch.device("cpu"))


def _failure(run: Any) -> str | None:
    """Why a rank ended; None when it did its work."""
    try:
        ray.get(run)
    except RayError as failure:
        return f"died: {first_line(failure)}"
    return None
