"""What critics say of a batch, and what follows from it: returns to learn, advantages, masks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rocknroll.trainer.critics_section import CriticsSection
from rocknroll.trainer.objectives.advantages import standardised
from rocknroll.trainer.objectives.disagreement import masks
from rocknroll.trainer.objectives.gae import gae
from rocknroll.trainer.trajectory import Trajectory

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Valuation:
    """What the critics say of each trajectory of a batch; lists are parallel."""

    values: list[Array]
    """V̄ [n]: mean over the critics, of the state in which each action token was chosen."""
    sigmas: list[Array]
    """[n]: standard deviation over the critics."""
    last: list[float]
    """V̄ of the state behind the last action token."""


def returns_of(trajectory: Trajectory, last: float, section: CriticsSection) -> Array:
    """What a critic learns, [n]: the discounted return from each action token on."""
    nothing = np.zeros(len(trajectory.token_ids))
    return gae(trajectory, nothing, last if section.bootstrap else 0.0, gamma=section.gamma, lam=1.0)[0]


def gae_advantages(trajectories: Sequence[Trajectory], valuation: Valuation, section: CriticsSection) -> list[Array]:
    """GAE of every trajectory on V̄; standardised over all tokens together, where the recipe says so."""
    found = []
    for trajectory, values, last in zip(trajectories, valuation.values, valuation.last, strict=True):
        at_tokens = np.zeros(len(trajectory.token_ids))
        at_tokens[trajectory.action_mask] = values
        behind = last if section.bootstrap else 0.0
        found.append(gae(trajectory, at_tokens, behind, gamma=section.gamma, lam=section.lam)[0])
    if not section.whiten or not found:
        return found
    return np.split(standardised(np.concatenate(found)), np.cumsum([len(own) for own in found])[:-1])


def disagreement_masks(
    valuation: Valuation, section: CriticsSection
) -> tuple[list[NDArray[np.bool_]], list[NDArray[np.bool_]]]:
    """I_A and I_H of every trajectory; nothing is left out where there is one critic alone."""
    several = section.kind == "asyppo"
    return masks(valuation.sigmas, section.agreeing * several, section.disagreeing * several)


def critic_metrics(
    trajectories: Sequence[Trajectory],
    valuation: Valuation,
    trained: Sequence[NDArray[np.bool_]],
    explored: Sequence[NDArray[np.bool_]],
    section: CriticsSection,
) -> dict[str, float]:
    """How good the values are (explained variance, bias by third of the episode), quantiles of the spread, and the
    shares of tokens that the masks leave out."""
    returns = [returns_of(t, last, section) for t, last in zip(trajectories, valuation.last, strict=True)]
    if not sum(len(own) for own in returns):
        return {}
    target, value, sigma = (np.concatenate(parts) for parts in (returns, valuation.values, valuation.sigmas))
    third = np.concatenate([np.arange(len(own)) * 3 // max(1, len(own)) for own in returns])
    variance = float(target.var())
    figures = {"critics/explained_variance": 1 - float((target - value).var()) / variance} if variance else {}
    for name, number in (("first", 0), ("middle", 1), ("last", 2)):
        if (third == number).any():
            figures[f"critics/bias_{name}_third"] = float((value - target)[third == number].mean())
    quantiles = zip((50, 80, 95), np.quantile(sigma, (0.5, 0.8, 0.95)), strict=True)
    figures |= {f"critics/sigma_p{q}": float(found) for q, found in quantiles}
    for name, mask in (("advantage", trained), ("entropy", explored)):
        figures[f"critics/{name}_masked_share"] = 1 - float(np.concatenate(list(mask)).mean())
    return figures
