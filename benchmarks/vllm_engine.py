"""vLLM on this machine beside the embedded engine: speed at several concurrencies, and what new weights cost.

    python benchmarks/vllm_engine.py [--quick] [--json] [--python .venv-vllm/bin/python]

Both play the same multi-turn episodes as `benchmarks/engine.py` with the same tiny policy in float32, one thread
each; the server is a process of its own, so times are wall times, taken in turns. Updates hand over a file, as the
learner does: `suspend`, `update_weights`, `resume` with the probe of `engine.vllm.probe` included.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from engine import Episode, make_episodes
from reporting import emit

from rocknroll.trainer.controller import write_weights
from rocknroll.trainer.engine_section import EngineSection
from rocknroll.trainer.engines.base import Engine, Request, Sampling
from rocknroll.trainer.engines.local import LocalEngine
from rocknroll.trainer.engines.vllm.engine import Limits, VLLMEngine
from rocknroll.trainer.engines.vllm.installation import find_installation
from rocknroll.trainer.engines.vllm.served import ServedPolicy
from rocknroll.trainer.engines.vllm.server import Server, Serving
from rocknroll.trainer.engines.weights_file import WeightsFile
from rocknroll.trainer.errors import RecipeError
from rocknroll.trainer.policy import build_tokenizer, load_policy, make_tiny, save_policy
from rocknroll.trainer.tiny_model import TinyModel

MAX_LENGTH = 512
CONCURRENCY = (1, 8, 32)
EPISODES_OF_ONE = 4
"""Episodes that are played where only one is played at a time, so that it does not take all day."""
LIMITS = Limits(start=900.0, generation=600.0, update=120.0)


def make_policy(folder: Path) -> Path:
    """The default policy's shape, with a vocabulary like ALFWorld's."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [a + b for a in letters for b in letters][:176]
    tokenizer = build_tokenizer([" ".join(words)])
    save_policy(make_tiny(TinyModel(max_length=MAX_LENGTH), tokenizer, seed=0), tokenizer, folder)
    return folder


async def play(engine: Engine, episodes: list[Episode], at_once: int) -> float:
    """Tokens per second over all episodes, so many at once."""
    free, began = asyncio.Semaphore(at_once), time.perf_counter()

    async def one(name: str, episode: Episode) -> int:
        context: list[int] = []
        async with free:
            for turn, (observation, length) in enumerate(zip(episode.observations, episode.lengths, strict=True)):
                context += observation
                answer = await engine.generate(Request(f"{name}.{turn}", name, context, Sampling(max_tokens=length)))
                context += answer.token_ids
            await engine.release(name)
        return sum(episode.lengths)

    tokens = sum(await asyncio.gather(*(one(str(n), episode) for n, episode in enumerate(episodes))))
    return tokens / (time.perf_counter() - began)


async def updated(engine: Engine, path: Path, version: int) -> float:
    """Milliseconds from the weights' file to the first step by them."""
    began = time.perf_counter()
    await engine.suspend()
    await engine.update_weights(WeightsFile(path), version)
    await engine.resume()
    return 1e3 * (time.perf_counter() - began)


async def measure(
    vllm: VLLMEngine, local: LocalEngine, weights: Path, rounds: int, scale: int
) -> dict[str, list[float]]:
    """Figures by name, one for each round."""
    taken: dict[str, list[float]] = {}

    async def note(name: str, work: Callable[[Engine], Awaitable[float]]) -> None:
        for label, engine in (("vllm", vllm), ("local", local)):
            taken.setdefault(f"{name}: {label}", []).append(await work(engine))

    for number in range(rounds + 1):
        for at_once in CONCURRENCY:
            count = EPISODES_OF_ONE if at_once == 1 else at_once * scale
            episodes = make_episodes(count, 1, seed=at_once)
            await note(f"tokens/s at {at_once}", lambda engine, e=episodes, n=at_once: play(engine, e, n))
        await note("update, ms", lambda engine, v=number + 1: updated(engine, weights, v))
        if number == 0:
            taken.clear()  # warm-up
    return taken


async def run(python: str | None, rounds: int, scale: int) -> tuple[dict[str, float], dict[str, Any]]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = make_policy(Path(scratch) / "policy")
        model, tokenizer = load_policy(str(folder))
        weights = write_weights(model.state_dict(), Path(scratch) / "weights.safetensors")
        installation = find_installation(python)
        section = EngineSection(kind="vllm", slots=max(CONCURRENCY))
        serving = Serving(folder, "float32", MAX_LENGTH)
        vllm = VLLMEngine(
            lambda cores: Server(section, serving, installation, cores),
            ServedPolicy(folder, tokenizer, "float32", model),
            max_length=MAX_LENGTH,
            limits=LIMITS,
        )
        local = LocalEngine(load_policy(str(folder))[0], slots=max(CONCURRENCY), max_length=MAX_LENGTH)
        began = time.perf_counter()
        try:
            await vllm.ready()
            start_s = time.perf_counter() - began
            taken = await measure(vllm, local, weights, rounds, scale)
        finally:
            await vllm.close()
            await local.close()
    names = dict.fromkeys(name.rpartition(":")[0] for name in taken)
    ratios = {
        f"{name}, vllm over local": statistics.median(
            a / b for a, b in zip(taken[f"{name}: vllm"], taken[f"{name}: local"], strict=True)
        )
        for name in names
    }
    figures: dict[str, Any] = {name: f"{statistics.median(values):.0f}" for name, values in taken.items()}
    figures["start of the server, s"] = round(start_s, 1)
    figures["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    figures["vLLM, rounds"] = f"{installation.version}, {rounds}"
    return ratios, figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer episodes and rounds")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--python", help="interpreter that has vLLM")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        find_installation(arguments.python)
    except RecipeError as error:
        print(f"not measured: {error}", file=sys.stderr)
        return
    ratios, figures = asyncio.run(
        run(arguments.python, rounds=1 if arguments.quick else 3, scale=1 if arguments.quick else 2)
    )
    emit("vllm", ratios, figures, arguments.json)


if __name__ == "__main__":
    main()
