"""Policy objectives as pure functions, one signature, one registry.

Symbols as in ALGORITHMS: `μ` behaviour policy (recorded when the token was sampled), `π_prox` the
trainer's weights when the batch arrived, `π_θ` the weights being optimised; `r = π_θ/μ`,
`u = π_θ/π_prox`, `w = π_prox/μ`. Tensors have shape [B, T]: a row is a trajectory, a column one of
its action tokens, `mask` says which entries are real. What stands where the mask is false never
reaches a value or a gradient, not even NaN. Losses are minimised and not yet reduced
(`aggregate.py` weighs them); `stats` are per-token indicators without gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to ±20 before `exp` (a ratio of 5e8), so that an extreme one gives a huge
finite loss with zero gradient instead of inf·0 = NaN."""

Stats = dict[str, Tensor]


class LossConfig(Protocol):
    """The settings a policy loss may read; `recipe.LearnerSection` has them."""

    @property
    def clip_low(self) -> float: ...
    @property
    def clip_high(self) -> float: ...
    @property
    def ratio_cap(self) -> float: ...


class PolicyLoss(Protocol):
    """Per-token loss [B, T] and per-token indicators [B, T] of one objective."""

    def __call__(
        self, logp: Tensor, behaviour: Tensor, proximal: Tensor, advantage: Tensor, mask: Tensor, cfg: LossConfig, /
    ) -> tuple[Tensor, Stats]: ...


def ratio(log_numerator: Tensor, log_denominator: Tensor, mask: Tensor) -> Tensor:
    """`exp(log_numerator − log_denominator)`, the exponent clamped to ±LOG_RATIO_LIMIT; 1 where the mask is false."""
    difference = torch.where(mask, log_numerator, 0.0) - torch.where(mask, log_denominator, 0.0)
    return difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def ppo(
    logp: Tensor, behaviour: Tensor, proximal: Tensor, advantage: Tensor, mask: Tensor, cfg: LossConfig
) -> tuple[Tensor, Stats]:
    """`−min(u·A, clip(u, 1−ε_lo, 1+ε_hi)·A)` (Schulman et al. 2017, eq. 7, with two epsilons as in DAPO).

    GRPO (Shao et al. 2024, eq. 3) is the same surrogate with group-relative advantages. It clips
    around π_prox, so with one optimiser step per batch u ≡ 1 and the clip never acts.
    """
    u = ratio(logp, proximal, mask)
    advantage = torch.where(mask, advantage, 0.0)
    free, clipped = u * advantage, u.clamp(1 - cfg.clip_low, 1 + cfg.clip_high) * advantage
    stats = {
        "clip_low_fraction": (mask & (advantage < 0) & (u < 1 - cfg.clip_low)).detach(),
        "clip_high_fraction": (mask & (advantage > 0) & (u > 1 + cfg.clip_high)).detach(),
    }
    return -torch.minimum(free, clipped), stats


def decoupled_ppo(
    logp: Tensor, behaviour: Tensor, proximal: Tensor, advantage: Tensor, mask: Tensor, cfg: LossConfig
) -> tuple[Tensor, Stats]:
    """`sg(min(w, cap)) · ppo` (AReaL, Fu et al. 2025, eq. 5): corrects staleness by w, clips around π_prox.

    w carries no gradient. The cap truncates; that it truncates and does not drop the token is a
    choice made here.
    """
    loss, stats = ppo(logp, behaviour, proximal, advantage, mask, cfg)
    w = ratio(proximal, behaviour, mask).detach()
    return w.clamp(max=cfg.ratio_cap) * loss, stats | {"ratio_cap_fraction": mask & (w > cfg.ratio_cap)}


def reinforce(
    logp: Tensor, behaviour: Tensor, proximal: Tensor, advantage: Tensor, mask: Tensor, cfg: LossConfig
) -> tuple[Tensor, Stats]:
    """`−A · log π_θ` (Williams 1992): no ratio, no clip, no correction for staleness."""
    return -torch.where(mask, advantage, 0.0) * torch.where(mask, logp, 0.0), {}


POLICY_LOSSES: Mapping[str, PolicyLoss] = {
    "ppo": ppo,
    "grpo": ppo,
    "decoupled_ppo": decoupled_ppo,
    "reinforce": reinforce,
}

USES_PROXIMAL = frozenset({"ppo", "grpo", "decoupled_ppo"})
"""Objectives that read π_prox; the others never pay for its forward pass."""


def k3_kl(logp: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """k3 estimate of KL(π_θ ‖ π_ref): `ρ − log ρ − 1` with `ρ = π_ref/π_θ` (Schulman 2020); 0 where masked."""
    log_rho = torch.where(mask, reference, 0.0) - torch.where(mask, logp, 0.0)
    log_rho = log_rho.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return log_rho.exp() - log_rho - 1


def regularised(
    loss: Tensor, mask: Tensor, *, entropy: Tensor, entropy_coef: float, kl: Tensor | None, kl_coef: float
) -> Tensor:
    """`loss + kl_coef·KL − entropy_coef·H`, per token; 0 where the mask is false."""
    if entropy_coef:
        loss = loss - entropy_coef * torch.where(mask, entropy, 0.0)
    if kl is not None:
        loss = loss + kl_coef * kl
    return torch.where(mask, loss, 0.0)
