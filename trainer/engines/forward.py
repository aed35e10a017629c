"""Forward passes over ragged batches for any Hugging Face causal LM, through the model's own code.

The model's attention is switched to one that reads and writes the engine's KV store, by
transformers' attention interface; everything else is the model's. `make_forward` checks the result
against the unchanged model once, so an architecture with a layer that this cannot serve (recurrent
state, attention sinks) is refused instead of being sampled wrongly.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from rocknroll.trainer.engines.base import EngineError
from rocknroll.trainer.engines.exact import padded_index
from rocknroll.trainer.engines.fused import FusedForward
from rocknroll.trainer.engines.probe import run_in_pieces
from rocknroll.trainer.engines.ragged import KVStore, RaggedBatch

ATTENTION = "rocknroll_slots"
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.05}
"""Largest difference of a logit that rounding explains, relative to the largest logit or 1."""


class Forward(Protocol):
    """A model that can run ragged batches."""

    def new_store(self, slots: int, max_length: int, exact: bool = False) -> KVStore:
        """An empty KV store of the model's shape, type and device. `exact`: as `exact.py` says."""

    def logits(self, batch: RaggedBatch, last: Tensor) -> Tensor:
        """Run the batch; logits [N, V] of the packed tokens at the indices `last` [N]."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over the weights of a state dict; all or nothing.

        Raises:
            ValueError: names or shapes are not the model's.
        """

    def with_weights(self, state: Mapping[str, Any]) -> Forward:
        """A second forward beside this one that has the weights of a state dict and uses the same stores.

        Raises:
            ValueError: names or shapes are not the model's.
        """


class ModuleForward:
    """The model's own modules with their attention replaced. Owns the model that it is given."""

    def __init__(self, model: Any) -> None:
        self.model = model
        model.set_attn_implementation(ATTENTION)

    def new_store(self, slots: int, max_length: int, exact: bool = False) -> KVStore:
        config = self.model.config.get_text_config()
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return KVStore(
            layers=config.num_hidden_layers,
            slots=slots,
            kv_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
            max_length=max_length,
            head_dim=head_dim,
            dtype=self.model.dtype,
            device=self.model.device,
            exact=exact,
        )

    def logits(self, batch: RaggedBatch, last: Tensor) -> Tensor:
        output = self.model(
            input_ids=batch.ids[None],
            position_ids=batch.positions[None],
            use_cache=False,
            logits_to_keep=padded_index(last) if batch.store.exact else last,
            slot_batch=batch,
        )
        logits: Tensor = output.logits[0, : len(last)]
        return logits

    def load(self, state: Mapping[str, Any]) -> None:
        load_weights(self.model, state)

    def with_weights(self, state: Mapping[str, Any]) -> ModuleForward:
        other = ModuleForward(copy.deepcopy(self.model))
        other.load(state)
        return other


def make_forward(model: Any) -> Forward:
    """The fastest forward that serves the model, checked against it. The model itself is left alone.

    Raises:
        EngineError: the embedded engine cannot serve this architecture.
    """
    own = copy.deepcopy(model).eval().requires_grad_(False)
    probe = torch.arange(12, device=own.device) % own.get_input_embeddings().num_embeddings
    with torch.inference_mode():
        expected = own(input_ids=probe[None], use_cache=False).logits[0]
    forward: Forward = FusedForward(own) if FusedForward.serves(own) else ModuleForward(own)
    with torch.inference_mode():
        try:
            got = run_in_pieces(forward, probe)
        except (TypeError, AttributeError, KeyError, IndexError, RuntimeError) as error:
            raise EngineError(f"The embedded engine cannot serve {type(model).__name__}: {error}") from error
    bound = TOLERANCE.get(own.dtype, 0.25) * max(1.0, float(expected.abs().max()))
    if not torch.allclose(got.float(), expected.float(), rtol=0.0, atol=bound):
        off = float((got - expected).abs().max())
        raise EngineError(
            f"The embedded engine cannot serve {type(model).__name__}: its logits differ from the model's by "
            f"{off:.3g}, so it has layers that a KV cache by slots does not reproduce. Use an external engine for it."
        )
    return forward


def load_weights(model: Any, state: Mapping[str, Any]) -> None:
    """Copy a state dict into the model in place. Tied weights may be missing; checks all before it copies any.

    Raises:
        ValueError: names or shapes are not the model's.
    """
    own = model.state_dict()
    unknown = sorted(state.keys() - own.keys())
    present = {own[name].data_ptr() for name in state.keys() & own.keys()}
    missing = sorted(name for name in own.keys() - state.keys() if own[name].data_ptr() not in present)
    if unknown or missing:
        raise ValueError(f"the new weights do not fit the model: unknown {unknown[:3]}, missing {missing[:3]}")
    for name, value in state.items():
        if value.shape != own[name].shape:
            raise ValueError(f"the new weight {name} has shape {list(value.shape)}, not {list(own[name].shape)}")
    with torch.inference_mode():
        for name, value in state.items():
            own[name].copy_(value)


def _slot_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    slot_batch: RaggedBatch,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention in the shape that transformers calls: [1, heads, T, head_dim] in, [1, T, heads, head_dim] out."""
    if softcap is not None or s_aux is not None:
        raise TypeError("soft-capped attention and attention sinks are not supported")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    new = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    q, k, v = (tensor.contiguous() for tensor in new)
    return slot_batch.attend(module.layer_idx, q, k, v, scale, sliding_window)[None], None


def _no_mask(*_: Any, **__: Any) -> None:
    """No mask at all: the ragged batch knows which positions a token sees."""


AttentionInterface.register(ATTENTION, _slot_attention)
AttentionMaskInterface.register(ATTENTION, _no_mask)
