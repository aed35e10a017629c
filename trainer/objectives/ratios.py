"""What a policy loss is given, and probability ratios of tokens, sequences and segments.

Logarithms are joined first and clamped last, just before `exp`; where the mask is false a
log-ratio is 0 and a ratio 1, whatever stands there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rocknroll.trainer.objectives.catalogue import RatioLevel

Join = Literal["mean", "sum"]
"""How the log-ratios of a sequence or segment become one: their mean (the geometric mean of the ratios, whatever
the length, as in GSPO) or their sum (the ratio of the whole sequence's probabilities)."""

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to ±20 before `exp` (a ratio of 5e8), so that an extreme one gives a huge
finite loss with zero gradient instead of inf·0 = NaN."""


@dataclass(frozen=True)
class LossInput:
    """Tensors of shape [B, T]: a row is a trajectory, a column one of its action tokens, unless it says otherwise."""

    logp: Tensor
    """log π_θ, the only one that carries a gradient."""
    behaviour: Tensor
    """log μ: recorded when the token was sampled, or the trainer's own under the version that sampled it."""
    proximal: Tensor
    """log π_prox: the trainer's weights when the batch arrived."""
    advantage: Tensor
    mask: Tensor
    """bool: which entries are real."""
    segment: Tensor
    """int64: index, within its row, of the contiguous run of action tokens that a token belongs to."""
    returns: Tensor
    """[B]: return of each trajectory's episode."""

    @property
    def masked_advantage(self) -> Tensor:
        """The advantage, 0 where the mask is false."""
        return torch.where(self.mask, self.advantage, 0.0)


def log_ratio(log_numerator: Tensor, log_denominator: Tensor, mask: Tensor) -> Tensor:
    """`log_numerator − log_denominator`, 0 where the mask is false; not even NaN there reaches a gradient."""
    return torch.where(mask, log_numerator, 0.0) - torch.where(mask, log_denominator, 0.0)


def exp_ratio(log_values: Tensor) -> Tensor:
    """`exp`, the exponent clamped to ±LOG_RATIO_LIMIT."""
    return log_values.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def over_level(log_values: Tensor, given: LossInput, level: RatioLevel, join: Join) -> Tensor:
    """Log-ratio of each token's sequence or segment, [B, T]; at token level the log-ratios as they are.

    `log_values` must be 0 where the mask is false.
    """
    if level == "token":
        return log_values
    index = torch.where(given.mask, given.segment, 0) if level == "segment" else torch.zeros_like(given.segment)
    none = torch.zeros_like(log_values)
    totals = none.scatter_add(1, index, log_values)
    if join == "mean":
        totals = totals / none.scatter_add(1, index, given.mask.to(none.dtype)).clamp(min=1)
    return torch.where(given.mask, totals.gather(1, index), 0.0)
