"""Generalised advantage estimation over the action tokens of an episode (Schulman et al. 2016, eq. 11–16).

It needs a critic's values, which no advantage in `advantages.py` does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rocknroll.trainer.trajectory import Outcome, Trajectory

Array = NDArray[np.float64]


def gae(trajectory: Trajectory, values: Array, last_value: float, *, gamma: float, lam: float) -> tuple[Array, Array]:
    """Advantages and returns (advantage + value, what a critic learns), each [n]: one per action token.

    `values` [T] holds at each action token the value of the state it was chosen in; what stands elsewhere is
    never read. Observation tokens are skipped: the state after an action token is the one in which the *next
    action* token is chosen, whatever lies between. After the last action token a completed episode is worth 0,
    and a truncated one, which would have gone on, `last_value`. A turn's reward comes with its last token.

    Raises:
        ValueError: `values` has another shape than the tokens.
    """
    if values.shape != trajectory.token_ids.shape:
        raise ValueError(f"trajectory {trajectory.id}: values have shape {values.shape}, one for each token is needed")
    rewards = np.zeros(len(trajectory.token_ids))
    for turn in trajectory.turns:
        rewards[turn.end - 1] += turn.reward
    mask = trajectory.action_mask
    reward, value = rewards[mask], values[mask]
    following = last_value if trajectory.outcome is Outcome.TRUNCATED else 0.0
    advantages = np.zeros(len(value))
    ahead = 0.0
    for t in reversed(range(len(value))):
        ahead = reward[t] + gamma * following - value[t] + gamma * lam * ahead
        advantages[t] = ahead
        following = value[t]
    return advantages, advantages + value
