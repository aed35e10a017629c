"""Correction of the mismatch between engine and trainer, apart from staleness.

The engine that sampled a token and the trainer compute its probability with different kernels and
precisions, so `m = μ_train/μ_engine`, both under the version that sampled it, is not 1 even when the
data is fresh. Multiplying the loss by m, bounded and without gradient, is truncated importance
sampling against the engine (Yao et al. 2025, "Your efficient RL framework secretly brings you
off-policy RL training"). μ_train must be that old version's: with today's weights in its place m
would correct staleness a second time (arXiv 2605.12070).
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor

from rocknroll.trainer.objectives.ratios import LossInput, exp_ratio, log_ratio, over_level


class MismatchConfig(Protocol):
    """The settings of the correction; `recipe.MismatchSection` has them."""

    @property
    def mode(self) -> Literal["off", "token", "sequence"]: ...
    @property
    def cap(self) -> float: ...
    @property
    def floor(self) -> float: ...
    @property
    def exceed(self) -> Literal["clip", "mask"]: ...


def mismatch_weight(given: LossInput, engine: Tensor, cfg: MismatchConfig) -> tuple[Tensor, Tensor]:
    """The weight of each token's loss and whether m lay outside [floor, cap], both [B, T], without gradient.

    `given.behaviour` is log μ_train, `engine` [B, T] is log μ_engine. Over a sequence m is the product over its
    tokens. Outside the bounds the loss is weighed by the bound (`clip`) or left out (`mask`), whose tokens still
    count in the normalisation.
    """
    if cfg.mode == "off":
        return torch.ones_like(engine), torch.zeros_like(given.mask)
    log_m = log_ratio(given.behaviour, engine, given.mask).detach()
    m = exp_ratio(over_level(log_m, given, cfg.mode, "sum"))
    outside = given.mask & ((m < cfg.floor) | (m > cfg.cap))
    bounded = m.clamp(cfg.floor, cfg.cap) if cfg.exceed == "clip" else torch.where(outside, 0.0, m)
    return torch.where(given.mask, bounded, 1.0), outside
