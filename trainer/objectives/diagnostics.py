"""What the ratios of a batch say: which correction is alive, and how far off-policy the data is.

Computed once per iteration over all trained action tokens together, never averaged over passes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rocknroll.trainer.objectives.losses import LOG_RATIO_LIMIT

Array = NDArray[np.float64]


def ratio_metrics(logp: Array, behaviour: Array, proximal: Array) -> dict[str, float]:
    """Mean and max of w = π_prox/μ and r = π_θ/μ, effective sample size, approximate KLs; all inputs [N].

    `ess` is Kish's `(Σr)²/(N·Σr²)`, 1 when on-policy. `kl_behaviour` is the k3 estimate of
    KL(μ ‖ π_θ), `kl_proximal` of KL(π_prox ‖ π_θ).
    """
    if not len(logp):
        return {}
    w, r = _ratio(proximal, behaviour), _ratio(logp, behaviour)
    return {
        "ratio/w_mean": float(w.mean()),
        "ratio/w_max": float(w.max()),
        "ratio/r_mean": float(r.mean()),
        "ratio/r_max": float(r.max()),
        "ratio/ess": float(r.sum() ** 2 / (len(r) * (r**2).sum())),
        "ratio/kl_behaviour": _k3(logp, behaviour),
        "ratio/kl_proximal": _k3(logp, proximal),
    }


def _ratio(log_numerator: Array, log_denominator: Array) -> Array:
    return np.asarray(np.exp(np.clip(log_numerator - log_denominator, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)))


def _k3(logp: Array, sampled_from: Array) -> float:
    """k3 estimate of KL(sampled_from ‖ π_θ) from samples of `sampled_from`."""
    log_rho = np.clip(logp - sampled_from, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return float((np.exp(log_rho) - log_rho - 1).mean())
