"""The engines that a recipe asks for, with the tokenizer of the policy that they serve."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rocknroll.trainer.engines.cores import hold
from rocknroll.trainer.engines.devices import engine_devices
from rocknroll.trainer.engines.local import LocalEngine
from rocknroll.trainer.engines.pool import EnginePool, Replica
from rocknroll.trainer.engines.vllm.engine import Limits, VLLMEngine
from rocknroll.trainer.engines.vllm.installation import find_installation
from rocknroll.trainer.engines.vllm.served import ServedPolicy
from rocknroll.trainer.engines.vllm.server import Server, Serving, Started
from rocknroll.trainer.policy import load_policy, load_tokenizer
from rocknroll.trainer.recipe import Recipe

if TYPE_CHECKING:
    from rocknroll.trainer.engines.vllm.nodes import EngineNodes


class Made(NamedTuple):
    """Engines, none of them started, and what a rollout must know of their policy."""

    engine: EnginePool
    tokenizer: Any
    max_length: int
    """Tokens of the longest context."""


def make_engine(recipe: Recipe, model_folder: Path, logs: Path | None, nodes: EngineNodes | None = None) -> Made:
    """The engines for the policy in a folder (or of a hub id); servers write their logs into `logs`.

    `nodes`: where servers are started, unless on this machine.

    Raises:
        RecipeError: `engine.cores` names cores that this machine lacks, or there is no vLLM as the recipe wants it.
        PolicyError: the policy cannot be loaded.
    """
    section = recipe.engine
    make, tokenizer, max_length = KINDS[section.kind](recipe, model_folder, logs, nodes)
    pool = EnginePool(make, replicas=section.replicas, restarts=section.restarts, cores=section.cores)
    return Made(pool, tokenizer, max_length)


Launching = Callable[[int, Sequence[int] | None], Started]
"""Starts the server of a seat, held to some CPU cores."""
Kind = tuple[Callable[[int], Replica], Any, int]
"""What makes the engine of a seat, the policy's tokenizer, and its longest context."""


def _local(recipe: Recipe, model_folder: Path, logs: Path | None, nodes: EngineNodes | None) -> Kind:
    section, everywhere = recipe.engine, tuple(os.sched_getaffinity(0))
    model, tokenizer = load_policy(str(model_folder), recipe.policy.dtype)
    max_length = min(int(model.config.max_position_embeddings), section.max_length)

    def make(seat: int) -> LocalEngine:
        hold(0, everywhere)  # a thread inherits its cores from the one that starts it, which may be held to a few
        return LocalEngine(
            model,
            slots=section.slots,
            max_length=max_length,
            threads=section.threads,
            seed=recipe.seed,
            bit_exact=recipe.bit_exact,
        )

    return make, tokenizer, max_length


def _vllm(recipe: Recipe, model_folder: Path, logs: Path | None, nodes: EngineNodes | None) -> Kind:
    section, settings = recipe.engine, recipe.engine.vllm
    if not model_folder.is_dir():
        from huggingface_hub import snapshot_download

        model_folder = Path(snapshot_download(str(model_folder)))
    if settings.probe:
        model, tokenizer = load_policy(str(model_folder), recipe.policy.dtype)
    else:
        model, tokenizer = None, load_tokenizer(str(model_folder))
    config = json.loads((model_folder / "config.json").read_text(encoding="utf-8"))
    longest = int(config.get("text_config", config)["max_position_embeddings"])
    max_length = min(longest, section.max_length)
    dtype = settings.dtype or recipe.policy.dtype
    policy = ServedPolicy(model_folder, tokenizer, dtype, model)
    serving = Serving(model_folder, dtype, max_length)
    limits = Limits(settings.start_timeout_s, settings.generation_timeout_s, settings.update_timeout_s)
    seeds = count(recipe.seed)  # servers that drew the same numbers would say the same
    launch = None if settings.urls else _launching(recipe, serving, logs, nodes)

    def make(seat: int) -> VLLMEngine:
        server = settings.urls[seat] if launch is None else partial(launch, seat)
        return VLLMEngine(server, policy, max_length=max_length, limits=limits, seed=next(seeds))

    return make, tokenizer, max_length


def _launching(recipe: Recipe, serving: Serving, logs: Path | None, nodes: EngineNodes | None) -> Launching:
    """What starts the server of a seat."""

    def log(seat: int) -> Path | None:
        return None if logs is None else logs / f"vllm-{seat}.log"

    if nodes is not None:
        return lambda seat, cores: nodes.launch(seat, serving, log(seat))
    installation, devices = find_installation(recipe.engine.vllm.python), engine_devices(recipe)
    everywhere = tuple(os.sched_getaffinity(0))

    def here(seat: int, cores: Sequence[int] | None) -> Server:
        gpus = None if devices is None else devices[seat]
        return Server(recipe.engine, serving, installation, cores or everywhere, log(seat), gpus)

    return here


KINDS: dict[str, Callable[[Recipe, Path, Path | None, EngineNodes | None], Kind]] = {"local": _local, "vllm": _vllm}
