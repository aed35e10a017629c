"""The shape of a decoder that is made here. Imports nothing heavy."""

from __future__ import annotations

from typing import Self

from pydantic import Field, PositiveInt, model_validator

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
    subwords: int = Field(default=0, ge=0)
    """Size of a vocabulary of byte pairs in place of whole words, 512 or more: nothing is lost, spaces and line ends
    included, as code needs it. 0: words."""

    @model_validator(mode="after")
    def _vocabulary_is_of_one_kind(self) -> Self:
        if 0 < self.subwords < 512:
            raise ValueError(
                f"subwords={self.subwords} is fewer than the bytes and what every tokenizer has: take 512 or more"
            )
        if self.subwords and self.verb_last:
            raise ValueError("verb_last turns words around, and subwords has none: choose one")
        return self
