"""What a recipe needs to know of each policy objective, without torch: its terms, its levels, its companions.

The formulas are in `losses.py`, under the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

RatioLevel = Literal["token", "sequence", "segment"]
"""What a probability ratio is of: one token, a whole trajectory, or one contiguous run of action tokens."""

_NO_RATIO = "it has no probability ratio that could be taken over a sequence or segment"


@dataclass(frozen=True)
class ObjectiveFacts:
    """One row of the table."""

    clips_proximal: bool
    """It clips u = π_θ/π_prox as PPO does: it reads π_prox, and `dual_clip` has something to bound."""
    refused_levels: Mapping[RatioLevel, str] = field(default_factory=dict)
    """Levels that make no sense for it, with the reason."""
    companions: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the learner that belong to it and hold where a recipe does not say otherwise."""


OBJECTIVES: Mapping[str, ObjectiveFacts] = {
    "ppo": ObjectiveFacts(clips_proximal=True),
    "grpo": ObjectiveFacts(clips_proximal=True),
    "dapo": ObjectiveFacts(
        clips_proximal=True, companions={"clip_low": 0.2, "clip_high": 0.28, "aggregation": "token_mean"}
    ),
    "dr_grpo": ObjectiveFacts(clips_proximal=True, companions={"advantage": "dr_grpo", "aggregation": "sequence_sum"}),
    "gspo": ObjectiveFacts(
        clips_proximal=True,
        refused_levels={"token": "with the ratio of a single token it is `ppo`: say `objective: ppo`"},
        companions={
            "ratio_level": "sequence",
            "clip_low": 3e-4,
            "clip_high": 4e-4,
            "aggregation": "sequence_mean",
        },
    ),
    "decoupled_ppo": ObjectiveFacts(clips_proximal=True),
    "tis": ObjectiveFacts(clips_proximal=False, companions={"ratio_cap": 1.0}),
    "cispo": ObjectiveFacts(clips_proximal=False, companions={"clip_low": 1.0}),
    "topr": ObjectiveFacts(clips_proximal=False, companions={"ratio_level": "sequence", "ratio_cap": 1.0}),
    "reinforce": ObjectiveFacts(clips_proximal=False, refused_levels={"sequence": _NO_RATIO, "segment": _NO_RATIO}),
}

USES_PROXIMAL = frozenset(name for name, facts in OBJECTIVES.items() if facts.clips_proximal)
"""Objectives that read π_prox; the others never pay for its forward pass."""

WHOLE_BATCH_ADVANTAGES = frozenset({"reinforce++", "reinforce++_baseline"})
"""Advantages that compare the whole batch; the others compare the members of one group."""
