"""What the ratios of a batch say: which correction is alive, and how far off-policy the data is.

Computed once per iteration over all trained action tokens together, never averaged over passes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from rocknroll.trainer.objectives.ratios import LOG_RATIO_LIMIT

Array = NDArray[np.float64]

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
ALIVE = 1e-3
"""A weight this far from 1 changes something; the rounding of float32 forwards stays far below."""


def ratio_metrics(logp: Array, behaviour: Array, proximal: Array | None) -> dict[str, float]:
    """Mean, quantiles and maximum of r = π_θ/μ, u = π_θ/π_prox and w = π_prox/μ, sample size, KLs; inputs [N].

    `ess` is Kish's `(Σr)²/(N·Σr²)`, 1 when on-policy. `kl_behaviour` is the k3 estimate of KL(μ ‖ π_θ),
    `kl_proximal` of KL(π_prox ‖ π_θ). Without π_prox, what it is needed for is left out.
    """
    if not len(logp):
        return {}
    r = _ratio(logp, behaviour)
    metrics = {
        **_spread("ratio/r", r),
        "ratio/ess": float(r.sum() ** 2 / (len(r) * (r**2).sum())),
        "ratio/kl_behaviour": _k3(logp, behaviour),
    }
    if proximal is not None:
        metrics |= _spread("ratio/u", _ratio(logp, proximal)) | _spread("ratio/w", _ratio(proximal, behaviour))
        metrics |= {"ratio/kl_proximal": _k3(logp, proximal)}
    return metrics


def mismatch_metrics(trainer: Array, engine: Array) -> dict[str, float]:
    """The same of m = μ_train/μ_engine over tokens whose two log-probabilities are known, [N].

    `kl` is the k3 estimate of KL(μ_engine ‖ μ_train).
    """
    if not len(trainer):
        return {}
    return {**_spread("mismatch/m", _ratio(trainer, engine)), "mismatch/kl": _k3(trainer, engine)}


def correction_metrics(
    staleness_weight: Array, mismatch_weight: Array, silenced: Array, w: Array | None
) -> dict[str, float]:
    """Which corrections act: shares of tokens, [N] each.

    `staleness_needed` is the share with |w − 1| > ALIVE: the data is stale there. `staleness_alive` is the share
    that the objective then weighs otherwise than 1: well below `needed`, staleness goes uncorrected.
    `clip_alive` is the share whose gradient a clip took away, `mismatch_alive` the share that the mismatch
    correction weighs otherwise than 1.
    """
    if not len(staleness_weight):
        return {}
    metrics = {
        "correction/staleness_alive": _share(np.abs(staleness_weight - 1) > ALIVE),
        "correction/clip_alive": _share(silenced.astype(bool)),
        "correction/mismatch_alive": _share(np.abs(mismatch_weight - 1) > ALIVE),
    }
    return metrics if w is None else metrics | {"correction/staleness_needed": _share(np.abs(w - 1) > ALIVE)}


def iteration_metrics(values: Mapping[str, Array]) -> dict[str, float]:
    """All of the above from what an iteration noted down, [N] each; see `iteration_record.COMPARED`."""
    logp, behaviour, engine = values["logp"], values["behaviour"], values["engine"]
    proximal = values.get("proximal")
    known = values["trainer_known"].astype(bool)
    return {
        **ratio_metrics(logp, behaviour, proximal),
        **mismatch_metrics(values["trainer"][known], engine[known]),
        **correction_metrics(
            values["staleness_weight"],
            values["mismatch_weight"],
            values["silenced"],
            None if proximal is None else _ratio(proximal, behaviour),
        ),
    }


def _spread(name: str, ratios: Array) -> dict[str, float]:
    quantiles = np.quantile(ratios, list(QUANTILES.values()))
    return {
        f"{name}_mean": float(ratios.mean()),
        **{f"{name}_{label}": float(value) for label, value in zip(QUANTILES, quantiles, strict=True)},
        f"{name}_max": float(ratios.max()),
    }


def _share(chosen: NDArray[np.bool_]) -> float:
    return float(chosen.mean())


def _ratio(log_numerator: Array, log_denominator: Array) -> Array:
    return np.asarray(np.exp(np.clip(log_numerator - log_denominator, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)))


def _k3(logp: Array, sampled_from: Array) -> float:
    """k3 estimate of KL(sampled_from ‖ π_θ) from samples of `sampled_from`."""
    log_rho = np.clip(logp - sampled_from, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return float((np.exp(log_rho) - log_rho - 1).mean())
