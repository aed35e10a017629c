"""The shape of a decoder that is made here. Imports nothing heavy."""

from __future__ import annotations

from pydantic import PositiveInt

from rocknroll.trainer.section import Section


class TinyModel(Section):
    """Shape of a Qwen3 decoder: the policy, where `policy.model` is `tiny`, or a critic."""

    hidden_size: PositiveInt = 96
    layers: PositiveInt = 3
    heads: PositiveInt = 3
    kv_heads: PositiveInt = 3
    head_dim: PositiveInt = 32
    intermediate_size: PositiveInt = 256
    max_length: PositiveInt = 1024
    verb_last: bool = False
    """Say commands with the verb last (`mug 1 from desk 2 take`), for environments whose commands begin with
    one: what to act on is decided first, and under `rollout.constrained` only among what is there."""
