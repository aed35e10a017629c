"""A recipe's learner, with all its ranks: this process is rank 0, the others are started here and end with it.

A rank that dies breaks the connections of the others, so rank 0 fails in its next exchange with them; one that hangs
lets that exchange time out. What is raised then names that rank, and not how it was noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from rocknroll.sandbox.cluster import check_installed, choose_cluster, on_cluster
from rocknroll.trainer.device_map import assign
from rocknroll.trainer.engines.cores import hold_process, share_of
from rocknroll.trainer.errors import LearnerRankLost, RecipeError
from rocknroll.trainer.learner import Learner
from rocknroll.trainer.policy import load_policy
from rocknroll.trainer.rank_processes import LOCALHOST, OtherRanks, RankProcesses, RankTask
from rocknroll.trainer.ranks import FollowingStream, Ranks, joined, meeting_at, meeting_point
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.stream import Stream

DYING_S = 10.0
"""How long ranks whose exchange failed are given to end."""
TIMED_OUT = "Timed out"
"""What gloo's errors say then."""


@contextmanager
def learner_of(
    task: RankTask, stream: Stream, on_iteration: Callable[[Mapping[str, float]], None] | None = None
) -> Iterator[Learner]:
    """Rank 0 of the learner, whose other ranks begin to learn when it does (with `resume` as the task says).

    Raises:
        LearnerRankLost: another rank died or hung, before or within the context.
        ClusterTooSmall: the ranks are to be on a cluster that has too little for them.
        PolicyError: the policy cannot be loaded.
        ClusterUnavailable: the cluster that is meant is not there, or does not take this process.
        RecipeError: a device is not there.
    """
    size = task.recipe.learner_ranks
    if size == 1:
        yield rank_of(task, stream, Ranks(), device_of(task.recipe, 0), on_iteration)
        return
    with _others_of(task) as (others, store, device):
        try:
            others.ready()
            with joined(store, 0, size, device, 0, task.recipe.learner.rank_timeout_s) as ranks:
                yield rank_of(task, stream, ranks, device, on_iteration)
        except RuntimeError as broken:
            hung = others.silent(DYING_S) if TIMED_OUT in str(broken) else None
            lost = hung or others.first_dead(DYING_S)
            others.kill()
            if lost is None:
                raise
            raise LearnerRankLost(lost) from broken
        except BaseException:
            others.kill()
            raise
        others.stop()


@contextmanager
def _others_of(task: RankTask) -> Iterator[tuple[OtherRanks, Any, torch.device]]:
    """The ranks besides this one, where all meet, and this one's device."""
    size, choice = task.recipe.learner_ranks, choose_cluster(task.recipe.cluster.address)
    if not choice.address:
        devices = [device_of(task.recipe, rank) for rank in range(size)]
        store = meeting_point(LOCALHOST, size)
        yield RankProcesses(task, store.host, store.port, size), store, devices[0]
        return
    check_installed(choice)
    from rocknroll.trainer.cluster import RankActors

    with on_cluster(choice) as host:
        store = meeting_point(host, size)
        actors = RankActors(task, store.host, store.port, size, gpus=task.recipe.cluster.devices.learner is not None)
        yield actors, store, actors.device


def follow(
    task: RankTask,
    rank: int,
    size: int,
    host: str,
    port: int,
    ready: Callable[[], None],
    device: torch.device | None = None,
) -> None:
    """Be rank `rank` until the learner ends; `ready` is called when everything is loaded.

    `device`: where to compute; unless given, where the recipe says, on this machine.
    """
    device = device or device_of(task.recipe, rank)
    store = meeting_at(host, port, size)
    ready()
    with joined(store, rank, size, device, rank, task.recipe.learner.rank_timeout_s) as ranks:
        rank_of(task, FollowingStream(), ranks, device).learn(resume=task.resume)


def device_of(recipe: Recipe, rank: int) -> torch.device:
    """Where a rank computes.

    Raises:
        RecipeError: on a device that this machine does not have.
    """
    devices = assign(recipe.cluster).get("learner")
    if devices is None:
        return torch.device("cpu")
    local = devices[rank] % recipe.cluster.gpus_per_node
    there = torch.cuda.device_count()
    if local >= there:
        raise RecipeError(
            f"`cluster.devices.learner` puts rank {rank} on GPU {local}, and torch {torch.__version__} sees {there} on"
            " this machine. Take `cluster.devices` out to learn on the CPU, or see to CUDA_VISIBLE_DEVICES"
        )
    return torch.device("cuda", local)


def rank_of(
    task: RankTask,
    stream: Stream,
    ranks: Ranks,
    device: torch.device,
    on_iteration: Callable[[Mapping[str, float]], None] | None = None,
) -> Learner:
    """One rank's learner, within `ranks.joined` where there are several."""
    recipe = task.recipe
    if recipe.learner.cores is not None:
        hold_process(_cores(recipe.learner.cores, ranks))
    model, tokenizer = load_policy(str(task.policy), recipe.policy.dtype)
    return Learner(
        model=model.to(device),
        tokenizer=tokenizer,
        stream=stream,
        section=recipe.learner,
        credit=recipe.credit,
        critics=recipe.critics,
        run_dir=task.run_dir,
        report_to=recipe.report_to if ranks.leads else (),
        seed=recipe.seed,
        temperature=recipe.rollout.temperature,
        checkpoint_every=recipe.checkpoint_every,
        on_iteration=on_iteration,
        num_groups=recipe.rollout.num_groups,
        max_staleness=task.max_staleness,
        ranks=ranks,
    )


def _cores(cores: Sequence[int], ranks: Ranks) -> Sequence[int]:
    return cores if ranks.size == 1 else share_of(cores, ranks.rank, ranks.size)
