"""What several critics that disagree tell about tokens (AsyPPO, arXiv 2510.01656, sections 4.1 and 4.2).

Each critic learns from its own part of every prompt's group, so where the state decides the return they come to agree,
and where it does not, or was never seen, they differ. Tokens with the smallest spread of values teach the policy
nothing new, and tokens with the largest one are not worth exploring.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Chosen = NDArray[np.bool_]


def split(group_sizes: Sequence[int], critics: int, version: int) -> list[list[int]]:
    """Which members each critic learns from: every group is dealt out evenly; members are counted over all groups.

    What a group leaves over, and a group of one, goes to the critics in turn.
    """
    parts: list[list[int]] = [[] for _ in range(critics)]
    member = 0
    for number, size in enumerate(group_sizes):
        for place in range(size):
            parts[(place + number + version) % critics].append(member)
            member += 1
    return parts


def spread(values: Array) -> Array:
    """σ: standard deviation over the critics of `values` [critics, n]; exactly 0 where they agree."""
    return np.where(values.max(axis=0) == values.min(axis=0), 0.0, values.std(axis=0))


def masks(sigmas: Sequence[Array], agreeing: float, disagreeing: float) -> tuple[list[Chosen], list[Chosen]]:
    """I_A and I_H of each trajectory, from σ of all tokens of the batch together.

    I_A is false for the share `agreeing` of the tokens with the lowest σ, I_H for the share `disagreeing` with the
    highest. Exactly so many: of equal ones I_A leaves out the earlier and I_H the later, never all that reach a value.
    """
    if not sigmas:
        return [], []
    whole = np.concatenate(sigmas)
    order = np.argsort(whole, kind="stable")
    trained, explored = np.ones(len(whole), dtype=bool), np.ones(len(whole), dtype=bool)
    trained[order[: _count(agreeing, len(whole))]] = False
    explored[order[len(whole) - _count(disagreeing, len(whole)) :]] = False
    ends = np.cumsum([len(sigma) for sigma in sigmas])[:-1]
    return np.split(trained, ends), np.split(explored, ends)


def _count(share: float, of: int) -> int:
    """Rounded down; 0.2 of 5 is 1 however 0.2 is stored."""
    return int(Fraction(str(share)) * of)
