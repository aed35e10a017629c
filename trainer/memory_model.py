"""What the learner and an engine need of a device's memory: estimates, from a model's shape and a recipe. Pure.

Tensors that training keeps are counted one by one, as V. Korthikanti et al. do in section 4.1 of "Reducing Activation
Recomputation in Large Transformer Models" (arXiv 2205.05198), here for grouped-query attention and a gated MLP;
tests/trainer/test_memory_model.py compares with what autograd keeps. States of mixed or plain AdamW: S. Rajbhandari
et al., ZeRO (arXiv 1910.02054), section 3. KV cache: W. Kwon et al., PagedAttention (arXiv 2309.06180), section 3.
What is added is said in `Part.how`, so that a reader can disagree with a number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from rocknroll.trainer.architecture import Architecture

GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2}
CONTEXT_BYTES = 3 * GIB // 2
"""A process on a GPU: CUDA context, kernels and their workspaces, and what the allocator cannot reuse. An allowance,
not measured: no GPU has been tried."""

DType = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Part:
    """One thing in a device's memory."""

    name: str
    size_bytes: int
    how: str
    """What was multiplied."""


@dataclass(frozen=True)
class LearnerLoad:
    """What a rank of the learner holds and computes."""

    model: Architecture
    dtype: DType
    ranks: int
    sharded: bool
    """FSDP2: weights, gradients and optimiser are divided among the ranks."""
    pass_tokens: int
    """Tokens of the largest forward pass."""
    action_share: float
    """Share of a pass's tokens that are action tokens: logits are computed for them alone."""
    recompute: bool = False
    """Activation checkpointing: of each layer only its input is kept."""
    extra_copies: int = 0
    """Whole copies of the policy beside it: reference, past versions, the one that credit reads."""
    critics: tuple[Architecture, ...] = ()


@dataclass(frozen=True)
class EngineLoad:
    """What one device of an engine holds."""

    model: Architecture
    dtype: DType
    split: int
    """Devices that an engine splits its weights over (tensor parallelism)."""
    slots: int
    max_length: int
    kv_cache_bytes: int | None = None
    """Memory set aside for contexts on the device; None: what `slots` of `max_length` need."""


def learner_memory(load: LearnerLoad) -> tuple[Part, ...]:
    """Of each rank's device."""
    size, shape = BYTES[load.dtype], load.model
    weights = shape.parameters * size
    over = f" / {load.ranks} ranks" if load.sharded else ""
    divided = math.ceil(weights / load.ranks) if load.sharded else weights
    count = f"{shape.parameters:,} parameters × {size}"
    parts = [
        Part("weights", divided, count + over),
        Part("gradients", divided, count + over),
        Part("optimiser", 2 * divided, f"two moments (AdamW) × {count}{over}"),
    ]
    if load.sharded:
        largest = max(shape.layer_parameters, shape.embedding_parameters)
        parts.append(Part("gathered layers", 2 * largest * size, f"two of {largest:,} parameters × {size}, whole"))
    elif load.ranks > 1:
        parts.append(Part("gradient buckets", weights, f"{count}: what DDP exchanges"))
    if load.extra_copies:
        parts.append(Part("copies of the policy", load.extra_copies * weights, f"{load.extra_copies} × {count}, whole"))
    # Weights, gradients and two moments in float32; every rank has all critics.
    parts += [Part("critic", 16 * c.parameters, f"{c.parameters:,} parameters × 16") for c in load.critics]
    per_token = max(
        activation_bytes(shape, load.dtype, recompute=load.recompute),
        *(activation_bytes(critic, "float32") for critic in load.critics),
        0,
    )
    parts.append(Part("activations", load.pass_tokens * per_token, f"{load.pass_tokens:,} tokens × {per_token:,}"))
    scored = math.ceil(load.pass_tokens * load.action_share)
    logits = scored * shape.vocabulary * (size + 16)
    parts.append(Part("logits", logits, f"{scored:,} action tokens × {shape.vocabulary:,} × ({size} + 4 × 4)"))
    parts.append(Part("context", CONTEXT_BYTES, "allowance for a process"))
    return tuple(parts)


def engine_memory(load: EngineLoad) -> tuple[Part, ...]:
    """Of each device of an engine."""
    size, shape = BYTES[load.dtype], load.model
    over = f" / {load.split}" if load.split > 1 else ""
    weights = math.ceil(shape.parameters * size / load.split)
    cache = load.kv_cache_bytes
    how = "as the recipe says"
    if cache is None:
        per_token = kv_bytes_per_token(shape, load.dtype, load.split)
        cache = load.slots * load.max_length * per_token
        how = f"{load.slots} slots × {load.max_length:,} tokens × {per_token:,}"
    widest = size * (4 * shape.hidden_size + 3 * math.ceil(shape.intermediate_size / load.split))
    return (
        Part("weights", weights, f"{shape.parameters:,} parameters × {size}{over}"),
        Part("KV cache", cache, how),
        Part("activations", load.max_length * widest, f"{load.max_length:,} tokens × {widest:,}, one layer"),
        Part("logits", load.slots * shape.vocabulary * 8, f"{load.slots} slots × {shape.vocabulary:,} × 8"),
        Part("context", CONTEXT_BYTES, "allowance for a process"),
    )


def activation_bytes(model: Architecture, dtype: DType, *, recompute: bool = False) -> int:
    """What one token leaves for the backward pass, logits apart.

    Each layer keeps, of width h, queries q = heads × head_dim, MLP i: two norms (their input and the normalised input
    in float32, and their output), the attention's query, repeated keys and values, and output (4q), and the MLP's gate,
    its activation, the other branch and their product (4i). The final norm is one more. With `recompute` a layer keeps
    its input, and one layer at a time the rest.
    """
    size, queries = BYTES[dtype], model.heads * model.head_dim
    norm = model.hidden_size * (8 + size)
    layer = 2 * norm + size * (4 * queries + 4 * model.intermediate_size)
    if model.qk_norm:
        layer += (model.heads + model.kv_heads) * model.head_dim * (8 + size)
    if recompute:
        return model.layers * model.hidden_size * size + layer + norm
    return model.layers * layer + norm


def kv_bytes_per_token(model: Architecture, dtype: DType, split: int = 1) -> int:
    """Keys and values of one token in all layers, on each of `split` devices; a head is never divided."""
    return 2 * model.layers * math.ceil(model.kv_heads / split) * model.head_dim * BYTES[dtype]


def total_bytes(parts: tuple[Part, ...]) -> int:
    """All of them."""
    return sum(part.size_bytes for part in parts)
