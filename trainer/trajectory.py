"""What a rollout produces and a learner consumes.

A trajectory is one episode, token by token: the prompt (first observation), then action tokens
sampled by the policy alternating with observation tokens written by the environment. Text is never
tokenised twice: what the engine sampled is what the learner trains on (token-in, token-out).
Invariant, checked on construction: the per-token arrays have one length, and logprobs and versions
carry meaning exactly where `action_mask` is true.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

NO_VERSION = -1
"""Policy version of a token that no policy sampled (prompt and observation tokens)."""


class Outcome(StrEnum):
    """How an episode ended. Only COMPLETED and TRUNCATED episodes carry a reward to learn from."""

    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    INFRA_ERROR = "infra_error"


@dataclass(frozen=True)
class Turn:
    """One action and what it brought; token positions index the trajectory's arrays."""

    start: int
    """First action token."""
    end: int
    """One past the last action token (the end-of-action token included)."""
    reward: float
    """Environment reward plus penalties for this action."""
    valid: bool
    """False when the environment did not admit the command."""
    state_hash: str = ""
    """Hash of the state the action was taken in (GiGPO's anchor state)."""
    progress: float = 0.0
    """Share of the goal that was reached in the state the action was taken in; 0 where the environment tells none."""


@dataclass(frozen=True)
class Trajectory:
    """One episode of one member of one group. Arrays have shape [T]."""

    id: str
    group_id: str
    task_id: str
    task_kind: str
    token_ids: NDArray[np.int32]
    action_mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    """Behaviour logprob of each action token, under the sampling distribution; 0 elsewhere."""
    versions: NDArray[np.int32]
    """Policy version that sampled each action token; NO_VERSION elsewhere."""
    turns: tuple[Turn, ...]
    outcome: Outcome
    success: bool
    allowed: tuple[tuple[int, ...], ...] | None = None
    """With constrained decoding: the token ids that were allowed at each action token, in order of
    the action tokens. The learner renormalises over the same set. None: unconstrained."""
    error: str = ""
    cause: str = ""
    """Of an INFRA_ERROR: a `rollout.faults.Cause`."""
    domain: str = ""
    """Which of the run's environments it was played in."""
    timings_s: dict[str, float] = field(default_factory=dict)
    """Wall seconds by cause: `generate`, `environment`, `queue`, `total`."""
    measured: dict[str, float] = field(default_factory=dict)
    """What the environment measured of the episode, by name (`metrics` of its last info)."""

    def __post_init__(self) -> None:
        shape = self.token_ids.shape
        for name in ("action_mask", "logprobs", "versions"):
            if getattr(self, name).shape != shape:
                raise ValueError(f"trajectory {self.id}: {name} has shape {getattr(self, name).shape}, tokens {shape}")
        if ((self.versions != NO_VERSION) != self.action_mask).any():
            raise ValueError(f"trajectory {self.id}: versions and action_mask disagree on what an action token is")
        if self.allowed is not None and len(self.allowed) != int(self.action_mask.sum()):
            raise ValueError(f"trajectory {self.id}: `allowed` needs one entry for each action token")

    @property
    def reward(self) -> float:
        """Return of the episode: the undiscounted sum over turns."""
        return sum(turn.reward for turn in self.turns)

    @property
    def oldest_version(self) -> int:
        """Version of the oldest action token; NO_VERSION when nothing was sampled."""
        return int(self.versions[self.action_mask].min()) if self.action_mask.any() else NO_VERSION


@dataclass(frozen=True)
class Group:
    """The finished trajectories of one task (same start state), trained together."""

    id: str
    task_id: str
    trajectories: tuple[Trajectory, ...]
    round_kind: Literal["", "short", "long"] = ""
    """Under tail batching: the kind of round that played it."""

    @property
    def rewards(self) -> NDArray[np.float64]:
        """Returns of the members, shape [G]."""
        return np.array([t.reward for t in self.trajectories], dtype=np.float64)
