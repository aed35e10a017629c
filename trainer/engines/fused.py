"""The forward pass of Qwen3, Qwen2 and Llama models in float32 with as few calls as possible.

On small models the time goes into dispatching operations, not into arithmetic. Here the query, key
and value projections are one product, gate and up another; norm weights are folded into the
products behind them; rotary embedding is one complex multiplication (rows of the projections are
reordered so that a rotated pair lies side by side, which leaves all scores as they are). Results
equal the modules' to rounding, which a test holds.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rocknroll.trainer.engines.exact import padded_index
from rocknroll.trainer.engines.ragged import KVStore, RaggedBatch

FAMILIES = ("qwen3", "qwen2", "llama")


@dataclass(frozen=True)
class _Layer:
    """Packed weights of one layer; matrices are [in, out]."""

    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    """[heads + kv_heads, head_dim], reordered as the projections; None without query and key norms."""
    out: Tensor
    out_bias: Tensor | None
    gate_up: Tensor
    down: Tensor


class FusedForward:
    """Owns the model that it is given and keeps its packed weights beside it."""

    def __init__(self, model: Any) -> None:
        config = model.config
        self.model = model
        self._heads: int = config.num_attention_heads
        self._kv_heads: int = config.num_key_value_heads
        self._width: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._eps: float = config.rms_norm_eps
        self._hidden: int = config.hidden_size
        self._rotations = torch.empty(0, self._width // 2, dtype=torch.complex64)
        self._pack()

    @staticmethod
    def serves(model: Any) -> bool:
        """True for models whose every setting this file implements."""
        config = model.config
        return bool(
            config.model_type in FAMILIES
            and model.dtype == torch.float32
            and model.device.type == "cpu"
            and config.hidden_act == "silu"
            and config.rope_parameters.get("rope_type", "default") == "default"
            and not any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ())
            and not getattr(config, "mlp_bias", False)
        )

    def new_store(self, slots: int, max_length: int, exact: bool = False) -> KVStore:
        half = torch.arange(0, self._width, 2, dtype=torch.float32) / self._width
        frequency = 1.0 / (self.model.config.rope_parameters["rope_theta"] ** half)
        angles = torch.arange(max_length, dtype=torch.float32)[:, None] * frequency
        self._rotations = torch.polar(torch.ones_like(angles), angles)
        return KVStore(
            layers=len(self._layers),
            slots=slots,
            kv_heads=self._kv_heads,
            max_length=max_length,
            head_dim=self._width,
            dtype=torch.float32,
            device=self.model.device,
            exact=exact,
        )

    def load(self, state: Mapping[str, Any]) -> None:
        from rocknroll.trainer.engines.forward import load_weights

        load_weights(self.model, state)
        self._pack()

    def with_weights(self, state: Mapping[str, Any]) -> FusedForward:
        other = copy.copy(self)
        other.model = copy.deepcopy(self.model)
        other.load(state)
        return other

    def logits(self, batch: RaggedBatch, last: Tensor) -> Tensor:
        x = F.embedding(batch.ids, self._embedding)
        rotation = self._rotations.index_select(0, batch.positions)[:, None]
        queries, turned = self._heads, self._heads + self._kv_heads
        for index, layer in enumerate(self._layers):
            packed = F.linear(self._norm(x), layer.qkv, layer.qkv_bias).view(len(x), -1, self._width)
            qk = packed[:, :turned]
            if layer.qk_norm is not None:
                qk = self._norm(qk).mul_(layer.qk_norm)
            pairs = torch.view_as_complex(qk.view(len(x), turned, -1, 2))
            qk = torch.view_as_real(pairs * rotation).flatten(2)
            seen = batch.attend(index, qk[:, :queries], qk[:, queries:], packed[:, turned:], self._width**-0.5)
            x = torch.addmm(x, seen.view(len(x), -1), layer.out)
            if layer.out_bias is not None:
                x += layer.out_bias
            gate, up = F.linear(self._norm(x), layer.gate_up).chunk(2, dim=1)
            x = torch.addmm(x, F.silu(gate).mul_(up), layer.down)
        wanted = x.index_select(0, padded_index(last) if batch.store.exact else last)
        return F.linear(self._norm(wanted), self._head, self._head_bias)[: len(last)]

    def _norm(self, x: Tensor) -> Tensor:
        """x / sqrt(mean(x²) + eps) over the last dimension."""
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x * torch.addcmul(self._eps_tensor, size, size, value=1.0 / x.shape[-1]).rsqrt_()

    def _pack(self) -> None:
        with torch.inference_mode():
            body = self.model.model
            self._eps_tensor = torch.tensor(self._eps)
            self._embedding = body.embed_tokens.weight
            self._layers = [self._pack_layer(layer) for layer in body.layers]
            self._head = self.model.lm_head.weight * body.norm.weight
            self._head_bias = self.model.lm_head.bias

    def _pack_layer(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        parts = (attention.q_proj, attention.k_proj, attention.v_proj)
        weights = [part.weight for part in parts]
        biases = [part.bias for part in parts]
        norms = None
        if hasattr(attention, "q_norm"):
            q_norm = self._paired(attention.q_norm.weight).expand(self._heads, -1)
            norms = torch.cat((q_norm, self._paired(attention.k_norm.weight).expand(self._kv_heads, -1)))
        weights[:2] = [self._paired(weight) for weight in weights[:2]]
        bias = None
        if biases[0] is not None:
            bias = torch.cat((self._paired(biases[0]), self._paired(biases[1]), biases[2]))
        return _Layer(
            qkv=torch.cat(weights) * layer.input_layernorm.weight,
            qkv_bias=bias,
            qk_norm=norms,
            out=attention.o_proj.weight.t().contiguous(),
            out_bias=attention.o_proj.bias,
            gate_up=torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)) * layer.post_attention_layernorm.weight,
            down=mlp.down_proj.weight.t().contiguous(),
        )

    def _paired(self, rows: Tensor) -> Tensor:
        """Reorder the first dimension within each head to 0, d/2, 1, d/2 + 1, …: rotated pairs side by side."""
        return rows.reshape(-1, 2, self._width // 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
