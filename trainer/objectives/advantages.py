"""Advantages from returns, as pure numpy functions: groups in, one array per member out.

Each array has shape [n]: one value per action token of that trajectory, in order. Everything is
float64 until it reaches the loss. Most compare the members of one group (`ADVANTAGES`); some need
the whole batch (`BATCH_ADVANTAGES`). `gae`, which needs a critic's values, is in `gae.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rocknroll.trainer.trajectory import Group, Trajectory, Turn

STD_EPSILON = 1e-6
"""Added to the standard deviation, as in the reference implementations."""

Array = NDArray[np.float64]


class AdvantageConfig(Protocol):
    """The settings an advantage may read; `recipe.LearnerSection` has them."""

    @property
    def gigpo_omega(self) -> float: ...
    @property
    def gamma(self) -> float: ...


class Advantage(Protocol):
    """Advantage of every action token of every member of a group.

    Raises:
        ValueError: the group lacks what the estimator needs.
    """

    def __call__(self, group: Group, cfg: AdvantageConfig, /) -> tuple[Array, ...]: ...


class BatchAdvantage(Protocol):
    """Advantage of every action token of every member of every group, group by group."""

    def __call__(self, groups: Sequence[Group], /) -> list[Array]: ...


def standardised(values: Array) -> Array:
    """`(x − mean)/(std + 1e-6)` with the sample standard deviation (n − 1), as TRL and verl do.

    Equal values, and a single one, give exactly 0: there is nothing to prefer.
    """
    if _alike(values):
        return np.zeros(len(values))
    return np.asarray((values - values.mean()) / (values.std(ddof=1) + STD_EPSILON))


def grpo(group: Group, cfg: AdvantageConfig) -> tuple[Array, ...]:
    """Return of the episode, standardised over the group (Shao et al. 2024); the same for all its tokens."""
    return _spread(group, standardised(group.rewards))


def dr_grpo(group: Group, cfg: AdvantageConfig) -> tuple[Array, ...]:
    """Return minus the group's mean, not divided by a standard deviation (Dr.GRPO, Liu et al. 2025, section 3.2)."""
    return _spread(group, _centred(group.rewards))


def rloo(group: Group, cfg: AdvantageConfig) -> tuple[Array, ...]:
    """Return minus the mean return of the *other* members (Ahmadian et al. 2024); a lone member gets 0."""
    size = len(group.trajectories)
    return _spread(group, _centred(group.rewards) * size / max(1, size - 1))


def gigpo(group: Group, cfg: AdvantageConfig) -> tuple[Array, ...]:
    """`A_episode + ω·A_step` (GiGPO, Feng et al. 2025, eq. 8).

    A_step standardises the discounted returns `Σ_k γ^(k−t)·r_k` over all turns of the group taken
    in an identical anchor state (`Turn.state_hash`); a state seen once gives 0.

    Raises:
        ValueError: a turn has no state hash.
    """
    for trajectory in group.trajectories:
        for number, turn in enumerate(trajectory.turns):
            if not turn.state_hash:
                raise ValueError(
                    f"gigpo needs the state each action was taken in, and turn {number} of trajectory {trajectory.id} "
                    "has none: the environment must give `state_hash` in `info`, or use `advantage: grpo`"
                )
    step = _compared(group, cfg.gamma, lambda turn: turn.state_hash, lambda returns, _: standardised(returns))
    episode = standardised(group.rewards)
    return tuple(total + cfg.gigpo_omega * own for total, own in zip(episode, step, strict=True))


def staged(group: Group, cfg: AdvantageConfig) -> tuple[Array, ...]:
    """Discounted return of each turn minus the group's mean over turns at the same stage (ours).

    A stage is a value of `Turn.progress`: how far the episode had come before the turn raises return and
    baseline alike and is not credited to the turn. The mean counts every episode's turns by their share
    of its action tokens, so under `sequence_mean` the advantages of a stage sum to 0. Not divided by a
    standard deviation (Dr.GRPO, Liu et al. 2025, section 3.2).
    """
    return _compared(
        group,
        cfg.gamma,
        lambda turn: turn.progress,
        lambda returns, shares: returns - np.average(returns, weights=shares),
    )


def reinforce_pp(groups: Sequence[Group]) -> list[Array]:
    """Return, standardised over all action tokens of the batch (REINFORCE++, Hu et al. 2025, arXiv 2501.03262)."""
    return _whitened([values for group in groups for values in _spread(group, group.rewards)])


def reinforce_pp_baseline(groups: Sequence[Group]) -> list[Array]:
    """Return minus the group's mean, then as `reinforce_pp` (the paper's variant for groups)."""
    return _whitened([values for group in groups for values in _spread(group, _centred(group.rewards))])


ADVANTAGES: Mapping[str, Advantage] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "gigpo": gigpo,
    "staged": staged,
}
BATCH_ADVANTAGES: Mapping[str, BatchAdvantage] = {
    "reinforce++": reinforce_pp,
    "reinforce++_baseline": reinforce_pp_baseline,
}


def advantages(name: str, groups: Sequence[Group], cfg: AdvantageConfig) -> list[Array]:
    """Advantage `name` of all members of `groups`, group by group.

    Raises:
        ValueError: a group lacks what the estimator needs.
    """
    if name in BATCH_ADVANTAGES:
        return BATCH_ADVANTAGES[name](groups)
    return [values for group in groups for values in ADVANTAGES[name](group, cfg)]


def discounted_returns(trajectory: Trajectory, gamma: float) -> Array:
    """`Σ_{k≥t} γ^(k−t)·r_k` for each turn t, shape [turns]."""
    returns = np.zeros(len(trajectory.turns))
    following = 0.0
    for turn in reversed(range(len(returns))):
        following = trajectory.turns[turn].reward + gamma * following
        returns[turn] = following
    return returns


def per_token(trajectory: Trajectory, per_turn: Array) -> Array:
    """Spread one value per turn over the action tokens of that turn, shape [n]; action tokens outside turns get 0."""
    values = np.zeros(len(trajectory.token_ids))
    for turn, value in zip(trajectory.turns, per_turn, strict=True):
        values[turn.start : turn.end] = value
    return np.asarray(values[trajectory.action_mask])


def _compared(
    group: Group, gamma: float, key: Callable[[Turn], Hashable], compare: Callable[[Array, Array], Array]
) -> tuple[Array, ...]:
    """What `compare` makes of the discounted returns of all turns of the group that have the same key; per token.

    `compare` gets two arrays [k] for each key: the returns, and the turns' shares of their trajectory's action
    tokens. Equal returns give exactly 0.
    """
    alike: defaultdict[Hashable, list[tuple[int, int]]] = defaultdict(list)
    for member, trajectory in enumerate(group.trajectories):
        for index, turn in enumerate(trajectory.turns):
            alike[key(turn)].append((member, index))
    returns = [discounted_returns(trajectory, gamma) for trajectory in group.trajectories]
    shares = [
        np.array([turn.end - turn.start for turn in trajectory.turns]) / int(trajectory.action_mask.sum())
        for trajectory in group.trajectories
    ]
    result = [np.zeros(len(trajectory.turns)) for trajectory in group.trajectories]
    for places in alike.values():
        values = np.array([returns[member][index] for member, index in places])
        if _alike(values):
            continue
        compared = compare(values, np.array([shares[member][index] for member, index in places]))
        for (member, index), value in zip(places, compared, strict=True):
            result[member][index] = value
    return tuple(per_token(t, values) for t, values in zip(group.trajectories, result, strict=True))


def _alike(values: Array) -> bool:
    """There is nothing to tell apart."""
    return not len(values) or bool(values.min() == values.max())


def _centred(values: Array) -> Array:
    """`x − mean`; equal values give exactly 0."""
    if _alike(values):
        return np.zeros(len(values))
    return np.asarray(values - values.mean())


def _whitened(per_member: list[Array]) -> list[Array]:
    """All values together standardised, each token counting once."""
    if not per_member:
        return []
    ends = np.cumsum([len(values) for values in per_member])
    return np.split(standardised(np.concatenate(per_member)), ends[:-1])


def _spread(group: Group, per_member: Array) -> tuple[Array, ...]:
    pairs = zip(group.trajectories, per_member, strict=True)
    return tuple(np.full(int(trajectory.action_mask.sum()), value) for trajectory, value in pairs)
