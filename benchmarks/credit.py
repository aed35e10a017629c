"""What reading WAAD and FAI costs a learner's step, on one thread.

A step is what the learner does with one row of T tokens: the forward without gradient that gives the proximal
log-probabilities, in which attention is read, and the training forward and backward. Ways to read the middle layers'
attention, taken in turns on the same weights and tokens:

    plain    nothing is read
    banded   the last H_hi scores of every row, with the kernel's own normalisers
    exact    all scores, in blocks of rows
    eager    the model's eager attention, whose maps a hook turns into the same signals

`ratios` are of steps' CPU seconds. `forward` in the figures compares the one forward alone; a second forward, which is
what an auxiliary model would cost, is `extra_forward`. Memory is the growth of the process's peak in that forward, each
way in a process of its own, beside the size of the maps that are not kept.
"""

from __future__ import annotations

import reporting  # isort: skip  (first: it mends the import path)

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from rocknroll.trainer.credit.signals import AttentionReader, Reduction, Windows, read_layers
from rocknroll.trainer.logprobs import action_logprobs
from rocknroll.trainer.packed_attention import reading, use_packed_attention
from rocknroll.trainer.packing import PackedPass, plan
from rocknroll.trainer.trajectory import NO_VERSION, Outcome, Trajectory

LENGTHS = (1024, 2048, 4096)
PROMPT = 128
WAYS = ("plain", "banded", "exact", "eager")
EAGER_ROUNDS = 2
"""It is many times slower, so two of them say enough."""
WINDOWS = Windows()


def model_of(quick: bool) -> Qwen3ForCausalLM:
    """38 M parameters in 12 layers with grouped queries, or a quarter of the width."""
    width = 128 if quick else 512
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=1000,
            hidden_size=width,
            intermediate_size=3 * width,
            num_hidden_layers=12,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=width // 8,
            max_position_embeddings=max(LENGTHS),
        )
    )
    use_packed_attention(model)
    return model


def row_of(length: int) -> PackedPass:
    """One trajectory: a prompt, and an answer of all the rest."""
    mask = np.arange(length) >= PROMPT
    trajectory = Trajectory(
        id="0",
        group_id="",
        task_id="",
        task_kind="",
        token_ids=np.random.default_rng(0).integers(0, 1000, length).astype(np.int32),
        action_mask=mask,
        logprobs=np.zeros(length, dtype=np.float32),
        versions=np.where(mask, 0, NO_VERSION).astype(np.int32),
        turns=(),
        outcome=Outcome.COMPLETED,
        success=False,
    )
    (packed,) = plan([trajectory], length, last=True)
    return packed


@contextmanager
def hooked(model: Qwen3ForCausalLM, layers: tuple[int, ...], packed: PackedPass) -> Iterator[None]:
    """Eager attention, whose maps of `layers` are reduced as they come."""
    queries = packed.predict + 1
    distance = queries[:, None] - torch.arange(packed.token_ids.shape[1])
    near = distance.clamp(0, WINDOWS.waad)
    counted = ((distance >= WINDOWS.fai_from) & (distance <= WINDOWS.fai_to)).float()

    def reduce(module: Any, arguments: Any, output: tuple[Tensor, Tensor]) -> None:
        rows = output[1][0][:, queries]
        (rows * near).sum(-1)
        (rows * counted).sum(1)

    hooks = [model.model.layers[layer].self_attn.register_forward_hook(reduce) for layer in layers]
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        use_packed_attention(model)
        for hook in hooks:
            hook.remove()


def score(model: Qwen3ForCausalLM, packed: PackedPass, way: str) -> None:
    """The forward that gives the proximal log-probabilities."""
    layers = read_layers(range(model.config.num_hidden_layers))
    with torch.no_grad():
        if way == "eager":
            with hooked(model, layers, packed):
                model(input_ids=packed.token_ids, logits_to_keep=packed.predict, use_cache=False)
            return
        reduction: dict[str, Reduction] = {"banded": "banded", "exact": "exact"}
        reader = AttentionReader(packed, layers, WINDOWS, reduction[way]) if way in reduction else None
        with nullcontext() if reader is None else reading(reader):
            action_logprobs(model, packed, 1.0)
        if reader is not None:
            heads = np.ones((len(layers), model.config.num_attention_heads), dtype=bool)
            reader.waad(heads)
            reader.fai(heads)


def train(model: Qwen3ForCausalLM, packed: PackedPass) -> None:
    """The training forward and backward."""
    logp, _ = action_logprobs(model, packed, 1.0)
    (-logp.mean()).backward()  # type: ignore[no-untyped-call]
    model.zero_grad()


def cpu_s(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def peak_growth_mib(way: str, length: int, quick: bool) -> float:
    """How much one forward raises the peak of a process that has the model; measured in a process of its own."""
    command = [sys.executable, str(Path(__file__).resolve()), "--peak", way, "--length", str(length)]
    output = subprocess.run([*command, *(["--quick"] if quick else [])], capture_output=True, text=True, check=True)
    return float(json.loads(output.stdout.splitlines()[-1]))


def print_peak(way: str, length: int, quick: bool) -> None:
    """What `peak_growth_mib` runs."""
    model = model_of(quick)
    score(model, row_of(2 * PROMPT), "plain")  # what is loaded and allocated once
    packed = row_of(length)
    before = reporting.peak_mib()
    score(model, packed, way)
    print(json.dumps(reporting.peak_mib() - before))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="a smaller model and fewer rounds")
    parser.add_argument("--peak", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--length", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.peak:
        print_peak(arguments.peak, arguments.length, arguments.quick)
        return 0
    model, rounds = model_of(arguments.quick), 3 if arguments.quick else 5
    ratios: dict[str, dict[str, float]] = {f"{way}_over_plain": {} for way in WAYS[1:]}
    figures: dict[str, Any] = {"forward": {}, "spread": {}, "seconds": {}, "memory_mib": {}, "maps_mib": {}}
    for length in LENGTHS:
        packed = row_of(length)
        taken: dict[str, list[float]] = {name: [] for name in (*WAYS, "train")}
        score(model, packed, "plain")
        for number in range(rounds):
            for way in WAYS if number < EAGER_ROUNDS else WAYS[:-1]:
                taken[way].append(cpu_s(partial(score, model, packed, way)))
            taken["train"].append(cpu_s(partial(train, model, packed)))
            print(f"T {length}: " + ", ".join(f"{n} {t[-1]:.2f} s" for n, t in taken.items()), file=sys.stderr)
        steps = [train_s + plain_s for train_s, plain_s in zip(taken["train"], taken["plain"], strict=True)]
        for way in WAYS[1:]:
            pairs = list(zip(taken[way], taken["plain"], taken["train"], steps, strict=False))
            of_steps = [(own + train_s) / step for own, _, train_s, step in pairs]
            ratios[f"{way}_over_plain"][str(length)] = round(statistics.median(of_steps), 4)
            figures["spread"][f"{way}, T {length}"] = [round(min(of_steps), 4), round(max(of_steps), 4)]
            forwards = [own / plain for own, plain, *_ in pairs]
            figures["forward"][f"{way}_over_plain, T {length}"] = round(statistics.median(forwards), 4)
        extra = [1 + plain / step for plain, step in zip(taken["plain"], steps, strict=True)]
        figures["forward"][f"extra_forward over a plain step, T {length}"] = round(statistics.median(extra), 4)
        figures["seconds"] |= {f"{way}, T {length}": round(statistics.median(t), 3) for way, t in taken.items()}
        heads, layers = model.config.num_attention_heads, len(read_layers(range(model.config.num_hidden_layers)))
        figures["maps_mib"][f"T {length}"] = round(layers * heads * length**2 * 4 / 2**20, 1)
        for way in WAYS:
            figures["memory_mib"][f"{way}, T {length}"] = round(peak_growth_mib(way, length, arguments.quick), 1)
    figures |= {"rounds": rounds, "layers_read": list(read_layers(range(model.config.num_hidden_layers)))}
    reporting.emit("credit", ratios, figures, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
