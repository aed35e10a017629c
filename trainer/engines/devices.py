"""Where engines are started, and which accelerators of this machine those get that are started here."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rocknroll.sandbox.cluster import ClusterChoice, choose_cluster
from rocknroll.trainer.device_map import assign, colocated
from rocknroll.trainer.errors import RecipeError
from rocknroll.trainer.placement_plan import engine_problems, tensor_parallel_size
from rocknroll.trainer.recipe import Recipe


def engine_cluster(recipe: Recipe) -> ClusterChoice | None:
    """The cluster that the engines' servers are started on; None: this machine, or nothing is to be started.

    Raises:
        ClusterUnavailable: the cluster that is meant does not answer.
        RecipeError: `engine.vllm.where` wants them on a cluster, and they cannot be there.
    """
    where = recipe.engine.vllm.where
    if recipe.engine.kind != "vllm" or recipe.engine.vllm.urls or where == "here":
        return None
    choice = choose_cluster(recipe.cluster.address)
    problem = _unfit_for_cluster(recipe)
    if where == "auto":
        wanted = choice.address and recipe.cluster.devices.engine is not None and not problem
        return choice if wanted else None
    if not choice.address:
        problem = f"{choice}: name a cluster in `cluster.address`"
    if problem:
        raise RecipeError(f"`engine.vllm.where` is `cluster`, and {problem}, or leave `where` out")
    return choice


def _unfit_for_cluster(recipe: Recipe) -> str:
    """Why Ray cannot place the engines, and what to do; empty when it can."""
    assigned = assign(recipe.cluster)
    if recipe.engine.cores is not None:
        return "`engine.cores` names cores of this machine: leave it out"
    if "learner" in assigned and (recipe.learner_ranks == 1 or colocated(assigned)):
        return (
            "Ray would not know which accelerators the learner has: give it ranks of its own on the cluster"
            " (`learner.ranks` of 2 or more, on other devices than the engines)"
        )
    return ""


def engine_devices(recipe: Recipe) -> list[tuple[int, ...]] | None:
    """The devices of each engine, by number on this machine; None where the recipe names none, or servers that run,
    or Ray hands them out.

    Raises:
        RecipeError: the engines cannot be on what `cluster.devices.engine` gives them.
    """
    assigned = assign(recipe.cluster)
    devices = assigned.get("engine")
    if devices is None or recipe.engine.vllm.urls:
        return None
    for problem in engine_problems(recipe, assigned):
        raise RecipeError(problem)
    if engine_cluster(recipe) is not None:
        return None
    if elsewhere := [device for device in devices if device >= recipe.cluster.gpus_per_node]:
        raise RecipeError(
            f"`cluster.devices.engine` has devices {', '.join(map(str, elsewhere))} on other nodes than the first, and"
            " servers are started on this machine alone unless a Ray cluster is meant (`cluster.address`): name it, or"
            " start vLLM there and give the addresses of all servers as `engine.vllm.urls`"
        )
    split = tensor_parallel_size(recipe)
    return [devices[first : first + split] for first in range(0, len(devices), split)]


def visible(devices: Sequence[int]) -> str:
    """`CUDA_VISIBLE_DEVICES` for a process that is to see these, of those that this process sees.

    Raises:
        RecipeError: this process does not see one of them.
    """
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if seen is None:
        return ",".join(map(str, devices))
    names = [name.strip() for name in seen.split(",") if name.strip()]
    if missing := [device for device in devices if device >= len(names)]:
        raise RecipeError(
            f"`cluster.devices.engine` names device {missing[0]}, and $CUDA_VISIBLE_DEVICES ({seen}) leaves"
            f" {len(names)}: name devices below {len(names)}, or unset the variable"
        )
    return ",".join(names[device] for device in devices)
