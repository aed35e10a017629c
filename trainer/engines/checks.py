"""What can be known to be wrong with a recipe's engines before any work is done. Imports nothing heavy."""

from __future__ import annotations

from rocknroll.trainer.engines.devices import engine_cluster, engine_devices
from rocknroll.trainer.engines.vllm.installation import find_installation
from rocknroll.trainer.recipe import Recipe


def check_engines(recipe: Recipe) -> None:
    """See that vLLM is here, where it is wanted here, and that the engines can have their devices.

    Raises:
        ClusterUnavailable: the cluster that is meant does not answer.
        RecipeError: something of that is not so.
    """
    section = recipe.engine
    if section.kind == "vllm" and not section.vllm.urls and engine_cluster(recipe) is None:
        find_installation(section.vllm.python)
    engine_devices(recipe)
