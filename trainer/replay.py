"""Stored trajectories under another policy: how far it has moved from the policies that played them.

One forward pass over what was sampled, with the learner's own log-probabilities; nothing is played. Symbols as in
ALGORITHMS: μ played the tokens, π is the policy asked about, r = π/μ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rocknroll.trainer.logprobs import action_logprobs
from rocknroll.trainer.packed_attention import use_packed_attention
from rocknroll.trainer.packing import plan
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.storage import read_groups
from rocknroll.trainer.trajectory import Trajectory
from rocknroll.trainer.trl_compat import disable_dropout_in_model

LOG_RATIO_LIMIT = 20.0
"""Beyond it a ratio says no more than `nothing in common`, and its exponential would drown everything else."""


@dataclass(frozen=True)
class Distance:
    """How far π is from μ on the action tokens of some trajectories."""

    trajectories: int
    tokens: int
    """Action tokens."""
    mean_abs_delta: float
    """Mean |log π − log μ|."""
    kl: float
    """k3 estimate of KL(μ ‖ π): the mean of r − 1 − log r (Schulman, Approximating KL Divergence)."""
    ess: float
    """Kish's effective sample size of the ratios over their number: 1 when on-policy."""
    outside_clip: float
    """Share of tokens whose r leaves [1 − clip_low, 1 + clip_high]."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Replayed:
    """What a replay found, by iteration and in all."""

    iterations: dict[int, Distance]
    total: Distance


def distance(
    behaviour: NDArray[np.floating[Any]],
    logp: NDArray[np.floating[Any]],
    *,
    trajectories: int,
    clip_low: float,
    clip_high: float,
) -> Distance:
    """Compare log μ and log π of N action tokens, [N] each."""
    if not len(logp):
        return Distance(trajectories, 0, 0.0, 0.0, 1.0, 0.0)
    delta = logp.astype(np.float64) - behaviour.astype(np.float64)
    log_r = np.clip(delta, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    r = np.exp(log_r)
    return Distance(
        trajectories=trajectories,
        tokens=len(r),
        mean_abs_delta=float(np.abs(delta).mean()),
        kl=float((np.expm1(log_r) - log_r).mean()),
        ess=float(r.sum() ** 2 / (len(r) * (r**2).sum())),
        outside_clip=float(((r < 1 - clip_low) | (r > 1 + clip_high)).mean()),
    )


def replay(model: Any, recipe: Recipe, files: Sequence[Path], tell: Callable[[int, int], None]) -> Replayed:
    """Score the trajectories of `files` under `model`; `tell` hears how many of the files are done.

    Raises:
        StorageError: a file is broken.
    """
    use_packed_attention(model)
    disable_dropout_in_model(model)
    clip = {"clip_low": recipe.learner.clip_low, "clip_high": recipe.learner.clip_high}
    found: dict[int, Distance] = {}
    everything: list[tuple[NDArray[np.float32], NDArray[np.float32]]] = []
    for done, path in enumerate(files):
        tell(done, len(files))
        played = [trajectory for group in read_groups(path) for trajectory in group.trajectories]
        behaviour, logp = score(model, played, recipe.rollout.temperature, recipe.learner.pass_tokens)
        found[int(path.stem)] = distance(behaviour, logp, trajectories=len(played), **clip)
        everything.append((behaviour, logp))
    tell(len(files), len(files))
    behaviour, logp = (np.concatenate(parts) for parts in zip(*everything, strict=True))
    count = sum(one.trajectories for one in found.values())
    return Replayed(found, distance(behaviour, logp, trajectories=count, **clip))


@torch.no_grad()
def score(
    model: Any, trajectories: Sequence[Trajectory], temperature: float, pass_tokens: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(log μ, log π) of every action token, [N] each, in the order of the passes."""
    behaviour: list[NDArray[np.float32]] = [np.empty(0, np.float32)]
    logp: list[NDArray[np.float32]] = [np.empty(0, np.float32)]
    for packed in plan(trajectories, pass_tokens):
        values, _ = action_logprobs(model, packed, temperature)
        logp.append(values.cpu().numpy())
        behaviour += [t.logprobs[t.action_mask] for t in (trajectories[index] for index in packed.members)]
    return np.concatenate(behaviour), np.concatenate(logp)
