"""Which accelerators of this machine each engine that is started here gets."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rocknroll.trainer.device_map import assign
from rocknroll.trainer.errors import RecipeError
from rocknroll.trainer.placement_plan import engine_problems, tensor_parallel_size
from rocknroll.trainer.recipe import Recipe


def engine_devices(recipe: Recipe) -> list[tuple[int, ...]] | None:
    """The devices of each engine, by number on this machine; None where the recipe names none, or servers that run.

    Raises:
        RecipeError: the engines cannot be on what `cluster.devices.engine` gives them.
    """
    assigned = assign(recipe.cluster)
    devices = assigned.get("engine")
    if devices is None or recipe.engine.vllm.urls:
        return None
    for problem in engine_problems(recipe, assigned):
        raise RecipeError(problem)
    if elsewhere := [device for device in devices if device >= recipe.cluster.gpus_per_node]:
        raise RecipeError(
            f"`cluster.devices.engine` has devices {', '.join(map(str, elsewhere))} on other nodes than the first, and"
            " servers are started on this machine alone: start vLLM there, and give the addresses of all servers as"
            " `engine.vllm.urls`"
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
