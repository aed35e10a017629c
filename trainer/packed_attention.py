"""Causal attention that keeps the trajectories of a packed row apart, for any Hugging Face decoder.

Registered with transformers' AttentionInterface. The boundary table travels as the 4-D
"attention mask", which transformers hands through to the attention function unchanged; an integer
dtype marks it, since real masks are boolean or floating. Each trajectory is attended to on its own
by the causal kernel: no mask, no T² memory, exact by construction. Without a boundary table the
function is plain SDPA with SDPA's masks, so the model still generates as before.

Within `reading` a reader is given the queries and keys of the layers it names (trainer/credit).
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "rocknroll_packed"
UNSUPPORTED = ("softcap", "s_aux", "position_bias")
"""Variants of attention that change the scores and that SDPA cannot express."""


class Reader(Protocol):
    """Wants to see the attention of some layers."""

    @property
    def layers(self) -> Set[int]: ...

    def read(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        scale: float,
        sliding_window: int | None,
        normaliser: Tensor | None,
    ) -> None:
        """One layer's `query` [heads, T, head_dim] and `key` [kv_heads, T, head_dim], and, where the kernel told it,
        the log of the sum of each row's exponentiated scores, [heads, T]."""


_READER: ContextVar[Reader | None] = ContextVar("reader", default=None)


@contextmanager
def reading(reader: Reader) -> Iterator[None]:
    """Let `reader` see the packed forwards of this thread."""
    token = _READER.set(reader)
    try:
        yield
    finally:
        _READER.reset(token)


def use_packed_attention(model: PreTrainedModel) -> None:
    """Switch `model` to this attention. Copies that share its config object switch with it."""
    model.set_attn_implementation(NAME)


def boundary_mask(boundaries: Tensor) -> Tensor:
    """The boundary table [S + 1] in the shape in which a model forward hands it through."""
    return boundaries.view(1, 1, 1, -1)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention over `query`, `key`, `value` [1, heads, T, head_dim]; returns [1, T, heads, head_dim].

    Dropout is ignored on packed rows: the ratio of two forwards of one policy must be one of weights.

    Raises:
        NotImplementedError: the model's attention is of a kind in UNSUPPORTED.
    """
    if attention_mask is None or attention_mask.is_floating_point() or attention_mask.dtype == torch.bool:
        output, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return output, None
    for name in UNSUPPORTED:
        if kwargs.get(name) is not None:
            raise NotImplementedError(f"packed attention cannot express `{name}`, which {type(module).__name__} uses")
    layer, reader = getattr(module, "layer_idx", -1), _READER.get()
    if reader is not None and layer not in reader.layers:
        reader = None
    own_key, groups = key, query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    edges = attention_mask.flatten().tolist()
    sizes = [end - start for start, end in pairwise(edges)]
    parts, normalisers = [], list[Tensor]()
    for q, k, v in zip(*(torch.split(whole, sizes, 2) for whole in (query, key, value)), strict=True):
        length = q.shape[2]
        if sliding_window is not None and length > sliding_window:
            band = torch.ones(length, length, dtype=torch.bool, device=q.device).tril().triu(1 - sliding_window)
            parts.append(scaled_dot_product_attention(q, k, v, attn_mask=band, scale=scaling))
        elif reader is not None and q.device.type == "cpu":
            # What scaled_dot_product_attention calls, which keeps the second result to itself.
            part, normaliser = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                q, k, v, is_causal=True, scale=scaling
            )
            parts.append(part)
            normalisers.append(normaliser[0])
        else:
            parts.append(scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling))
    if reader is not None:
        known = torch.cat(normalisers, dim=1) if len(normalisers) == len(parts) else None
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        reader.read(layer, query[0], own_key[0], scale, sliding_window, known)
    return torch.cat(parts, dim=2).transpose(1, 2), None


AttentionInterface.register(NAME, packed_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
