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
TURN_BINS = ((1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, None))
"""First and last turn, counted from 1, of each bin in which the bias of values is reported; doubling, so that long
episodes have few."""


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
    """How good the values are (explained variance, bias by turn and by third of the episode), quantiles of the
    spread, and the shares of tokens that the masks leave out."""
    returns = [returns_of(t, last, section) for t, last in zip(trajectories, valuation.last, strict=True)]
    if not sum(len(own) for own in returns):
        return {}
    target, value, sigma = (np.concatenate(parts) for parts in (returns, valuation.values, valuation.sigmas))
    variance = float(target.var())
    figures = {"critics/explained_variance": 1 - float((target - value).var()) / variance} if variance else {}
    figures |= _bias(trajectories, value - target)
    quantiles = zip((50, 80, 95), np.quantile(sigma, (0.5, 0.8, 0.95)), strict=True)
    figures |= {f"critics/sigma_p{q}": float(found) for q, found in quantiles}
    for name, mask in (("advantage", trained), ("entropy", explored)):
        figures[f"critics/{name}_masked_share"] = 1 - float(np.concatenate(list(mask)).mean())
    return figures


def _bias(trajectories: Sequence[Trajectory], error: Array) -> dict[str, float]:
    """Mean error of the values by third of the action tokens and by turn; bins without a token are left out.

    `error`: of the action tokens of all trajectories, one after the other.
    """
    lengths = [int(trajectory.action_mask.sum()) for trajectory in trajectories]
    third = np.concatenate([np.arange(length) * 3 // max(1, length) for length in lengths])
    bins = {f"{name}_third": third == number for number, name in enumerate(("first", "middle", "last"))}
    turn = np.concatenate([_turn_of_tokens(trajectory) for trajectory in trajectories])
    for first, last in TURN_BINS:
        name = f"turns_{first}_on" if last is None else f"turn_{first}" if first == last else f"turns_{first}_to_{last}"
        bins[name] = (turn >= first) & (turn <= (last or turn.max()))
    return {f"critics/bias_{name}": float(error[chosen].mean()) for name, chosen in bins.items() if chosen.any()}


def _turn_of_tokens(trajectory: Trajectory) -> NDArray[np.int64]:
    """The turn of each action token, counted from 1."""
    starts = [turn.start for turn in trajectory.turns]
    return np.searchsorted(starts, np.flatnonzero(trajectory.action_mask), side="right")
