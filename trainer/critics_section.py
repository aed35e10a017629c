"""The settings of critics in a recipe. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from rocknroll.trainer.section import Fraction, Section
from rocknroll.trainer.tiny_model import TinyModel


class MiniModel(TinyModel):
    """Half as wide as the tiny policy."""

    hidden_size: PositiveInt = 48
    layers: PositiveInt = 2
    heads: PositiveInt = 2
    kv_heads: PositiveInt = 2
    head_dim: PositiveInt = 24
    intermediate_size: PositiveInt = 128


class CriticsSection(Section):
    """Value models, for `learner.advantage: gae` and for masks from their disagreement (docs/critics.md)."""

    kind: Literal["none", "symmetric", "asyppo"] = "none"
    """`symmetric`: one critic that begins as a copy of the policy, as in PPO; `asyppo`: several small ones."""
    count: Annotated[int, Field(ge=2)] = 2
    """M, of `asyppo`."""
    model: str = "tiny"
    """Of `asyppo`: `tiny` (made here, as `critics.tiny` says), a hub id, or a local folder, with the policy's
    vocabulary."""
    tiny: MiniModel = MiniModel()
    learning_rate: PositiveFloat | None = None
    """Four times the learner's unless given."""
    lr_warmup_steps: NonNegativeInt = 0
    first_steps: NonNegativeInt = 10
    """Steps that the critics take on the first batch before the policy takes its first."""
    epochs: PositiveInt = 1
    minibatches: PositiveInt = 1
    """Optimiser steps that an epoch over a critic's part of the batch is cut into."""
    max_grad_norm: PositiveFloat = 1.0
    gamma: Fraction = 1.0
    """Discount per action token of the returns that the critics learn and of GAE."""
    lam: Fraction = 1.0
    """λ of GAE; the critics learn the return itself (λ = 1)."""
    bootstrap: bool = False
    """Count a truncated episode as one that would have gone on, worth what the critics say of its last state."""
    whiten: bool = True
    """Standardise the advantages of GAE over the batch."""
    agreeing: Fraction = 0.2
    """k: the share of tokens whose advantage is left out because the critics agree on them."""
    disagreeing: Fraction = 0.2
    """h: the share of tokens whose entropy is not rewarded because the critics disagree on them."""
    update: Literal["before", "after"] = "before"
    """Learn from a batch before valuing it, as published, or after the policy has, while the next batch is played
    (in synchronous training, too)."""
