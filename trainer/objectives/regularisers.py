"""What is added to a policy loss: KL to a reference policy, and entropy.

Estimators of KL(π_θ ‖ π_ref) from one sample of π_θ (Schulman 2020, "Approximating KL divergence"),
with `log ρ = log π_ref − log π_θ`. As terms of a loss, k2 and k3 pull towards the reference; the
gradient of k1 does not know the reference and averages to zero over on-policy samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from rocknroll.trainer.objectives.ratios import LOG_RATIO_LIMIT, log_ratio


def k1(log_rho: Tensor) -> Tensor:
    """`−log ρ`: unbiased, may be negative."""
    return -log_rho


def k2(log_rho: Tensor) -> Tensor:
    """`(log ρ)²/2`: biased; its gradient is that of KL(π_θ ‖ π_ref) in expectation."""
    return log_rho.square() / 2


def k3(log_rho: Tensor) -> Tensor:
    """`ρ − log ρ − 1`: unbiased and never negative."""
    return log_rho.exp() - log_rho - 1


KL_ESTIMATORS: Mapping[str, Callable[[Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def kl_estimate(estimator: str, logp: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """The estimate of each token, 0 where the mask is false; log-ratios are clamped to ±LOG_RATIO_LIMIT."""
    log_rho = log_ratio(reference, logp, mask).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return KL_ESTIMATORS[estimator](log_rho)


def regularised(
    loss: Tensor, mask: Tensor, *, entropy: Tensor, entropy_coef: float, kl: Tensor | None, kl_coef: float
) -> Tensor:
    """`loss + kl_coef·KL − entropy_coef·H`, per token; 0 where the mask is false."""
    if entropy_coef:
        loss = loss - entropy_coef * entropy
    if kl is not None:
        loss = loss + kl_coef * kl
    return torch.where(mask, loss, 0.0)
