"""Policy objectives as pure functions, one signature, one registry.

Symbols as in ALGORITHMS: `μ` behaviour policy, `π_prox` the trainer's weights when the batch
arrived, `π_θ` the weights being optimised; `r = π_θ/μ`, `u = π_θ/π_prox`, `w = π_prox/μ`, each of a
token, a sequence or a segment (`ratios.py`). What stands where the mask is false never reaches a
value or a gradient, not even NaN. Losses are minimised and not yet reduced (`aggregate.py` weighs
them); `stats` have no gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from rocknroll.trainer.objectives.catalogue import RatioLevel
from rocknroll.trainer.objectives.ratios import Join, LossInput, exp_ratio, log_ratio, over_level

Stats = dict[str, Tensor]
"""Of each token, [B, T]: `…_fraction` say whether something acted on it; `staleness_weight` is the factor by which
the objective corrects for the age of the data (1: not at all)."""


class LossConfig(Protocol):
    """The settings a policy loss may read; `recipe.LearnerSection` has them."""

    @property
    def ratio_level(self) -> RatioLevel: ...
    @property
    def clip_low(self) -> float: ...
    @property
    def clip_high(self) -> float: ...
    @property
    def ratio_cap(self) -> float: ...
    @property
    def dual_clip(self) -> float | None: ...


class PolicyLoss(Protocol):
    """Per-token loss [B, T] and what the objective did to each token, [B, T]."""

    def __call__(self, given: LossInput, cfg: LossConfig, /) -> tuple[Tensor, Stats]: ...


def ppo(given: LossInput, cfg: LossConfig) -> tuple[Tensor, Stats]:
    """`−min(u·A, clip(u, 1−ε_lo, 1+ε_hi)·A)` (Schulman et al. 2017, eq. 7, with two epsilons as in DAPO).

    With `dual_clip` = c, for A < 0 the surrogate is never below c·A (Ye et al. 2020, arXiv 1912.09729, eq. 5).
    GRPO (Shao et al. 2024, eq. 3), DAPO and Dr.GRPO are the same surrogate; at a higher level it is GSPO
    (Zheng et al. 2025, arXiv 2507.18071), in its token form (eq. 14), so that advantages may differ within a
    sequence. It clips around π_prox, so with one optimiser step per batch u ≡ 1 and the clip never acts.
    """
    log_u = log_ratio(given.logp, given.proximal, given.mask)
    if cfg.ratio_level != "token":
        joined = over_level(log_u, given, cfg.ratio_level, "mean").detach()
        log_u = joined + log_u - log_u.detach()  # GSPO-token: the value of the level, the gradient of the token
    u = exp_ratio(log_u)
    advantage = given.masked_advantage
    surrogate = torch.minimum(u * advantage, u.clamp(1 - cfg.clip_low, 1 + cfg.clip_high) * advantage)
    stats = {
        "clip_low_fraction": (advantage < 0) & (u < 1 - cfg.clip_low),
        "clip_high_fraction": (advantage > 0) & (u > 1 + cfg.clip_high),
        "staleness_weight": torch.ones_like(u),
    }
    if cfg.dual_clip is not None:
        bounded = (advantage < 0) & (u > cfg.dual_clip)
        surrogate = torch.where(bounded, cfg.dual_clip * advantage, surrogate)
        stats["dual_clip_fraction"] = bounded
    return -surrogate, {name: value.detach() for name, value in stats.items()}


def decoupled_ppo(given: LossInput, cfg: LossConfig) -> tuple[Tensor, Stats]:
    """`sg(min(w, cap)) · ppo` (AReaL, Fu et al. 2025, eq. 5): corrects staleness by w, clips around π_prox.

    w carries no gradient. The cap truncates; that it truncates and does not drop the token is a
    choice made here.
    """
    loss, stats = ppo(given, cfg)
    log_w = log_ratio(given.proximal, given.behaviour, given.mask)
    w = exp_ratio(over_level(log_w, given, cfg.ratio_level, "mean")).detach()
    weight = w.clamp(max=cfg.ratio_cap)
    return weight * loss, stats | {"ratio_cap_fraction": given.mask & (w > cfg.ratio_cap), "staleness_weight": weight}


def tis(given: LossInput, cfg: LossConfig) -> tuple[Tensor, Stats]:
    """`−sg(min(r, cap))·A·log π_θ`: truncated importance sampling, cap 1 unless the recipe says otherwise.

    As in ROLL Flash (arXiv 2510.11345). Over a sequence or segment r is the ratio of whole probabilities.
    """
    r = _behaviour_ratio(given, cfg, "sum")
    return _weighted(given, r.clamp(max=cfg.ratio_cap), {"ratio_cap_fraction": given.mask & (r > cfg.ratio_cap)})


def cispo(given: LossInput, cfg: LossConfig) -> tuple[Tensor, Stats]:
    """`−sg(clip(r, 1−ε_lo, 1+ε_hi))·A·log π_θ` (MiniMax-M1, arXiv 2506.13585, eq. 4).

    The clip bounds the weight and silences no token. The paper sets no lower bound: ε_lo is 1 unless the
    recipe says otherwise.
    """
    r = _behaviour_ratio(given, cfg, "mean")
    low, high = 1 - cfg.clip_low, 1 + cfg.clip_high
    clipped = {"ratio_floor_fraction": given.mask & (r < low), "ratio_cap_fraction": given.mask & (r > high)}
    return _weighted(given, r.clamp(low, high), clipped)


def topr(given: LossInput, cfg: LossConfig) -> tuple[Tensor, Stats]:
    """Return > 0: `−A·log π_θ`; else `−sg(min(r, cap))·A·log π_θ` (TOPR, arXiv 2503.14286, eq. 8, cap 1).

    The side is that of the trajectory's return, not of the advantage, and r the ratio of the whole
    sequence's probabilities, as in the paper; finer levels are options. A return of 0 counts as negative: the
    paper's are ±1, and here a failure often returns 0.
    """
    r = _behaviour_ratio(given, cfg, "sum")
    negative = given.mask & (given.returns <= 0)[:, None]
    weight = torch.where(negative, r.clamp(max=cfg.ratio_cap), 1.0)
    return _weighted(given, weight, {"ratio_cap_fraction": negative & (r > cfg.ratio_cap)})


def reinforce(given: LossInput, cfg: LossConfig) -> tuple[Tensor, Stats]:
    """`−A · log π_θ` (Williams 1992): no ratio, no clip, no correction for staleness."""
    return _weighted(given, torch.ones_like(given.logp), {})


def _behaviour_ratio(given: LossInput, cfg: LossConfig, join: Join) -> Tensor:
    """r = π_θ/μ at the recipe's level, without gradient."""
    log_r = log_ratio(given.logp, given.behaviour, given.mask)
    return exp_ratio(over_level(log_r, given, cfg.ratio_level, join)).detach()


def _weighted(given: LossInput, weight: Tensor, stats: Stats) -> tuple[Tensor, Stats]:
    """`−weight·A·log π_θ`."""
    log_p = log_ratio(given.logp, torch.zeros_like(given.logp), given.mask)
    return -weight * given.masked_advantage * log_p, stats | {"staleness_weight": weight}


POLICY_LOSSES: Mapping[str, PolicyLoss] = {
    "ppo": ppo,
    "grpo": ppo,
    "dapo": ppo,
    "dr_grpo": ppo,
    "gspo": ppo,
    "decoupled_ppo": decoupled_ppo,
    "tis": tis,
    "cispo": cispo,
    "topr": topr,
    "reinforce": reinforce,
}
