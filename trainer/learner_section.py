"""The part of a recipe that says how a batch is learned from. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from rocknroll.trainer.objectives.catalogue import OBJECTIVES, USES_PROXIMAL, WHOLE_BATCH_ADVANTAGES, RatioLevel
from rocknroll.trainer.section import Cores, Fraction, Section


class MismatchSection(Section):
    """Correction of the mismatch between engine and trainer, apart from staleness (docs/objectives.md)."""

    mode: Literal["off", "token", "sequence"] = "off"
    """Weigh the loss by m = μ_train/μ_engine of each token or of the whole sequence. With an asynchronous ratio
    it keeps that many past versions of the weights and costs a forward for each that a batch's tokens are of."""
    cap: PositiveFloat = 2.0
    floor: NonNegativeFloat = 0.0
    exceed: Literal["clip", "mask"] = "clip"
    """Beyond cap or floor: weigh by the bound, or leave the token (or sequence) out."""


class LearnerSection(Section):
    objective: Literal[
        "ppo", "grpo", "dapo", "dr_grpo", "gspo", "decoupled_ppo", "tis", "cispo", "topr", "reinforce"
    ] = "decoupled_ppo"
    """`ppo` and its kin do not correct for staleness when a batch is one step; `decoupled_ppo`, `tis`, `cispo` and
    `topr` do. Some bring settings of their own where the recipe does not say otherwise (docs/objectives.md)."""
    advantage: Literal["grpo", "dr_grpo", "rloo", "reinforce++", "reinforce++_baseline", "gigpo", "staged", "gae"] = (
        "grpo"
    )
    """`gae` needs `critics`."""
    aggregation: Literal["token_mean", "sequence_mean", "sequence_sum"] = "token_mean"
    constant_length: PositiveInt = 64
    """What `sequence_sum` divides a trajectory's sum by (Dr.GRPO)."""
    learning_rate: PositiveFloat = 3e-4
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: NonNegativeInt = 0
    iterations: PositiveInt = 40
    """Rollout batches to learn from."""
    epochs: PositiveInt = 1
    minibatches: PositiveInt = 1
    """Optimiser steps an epoch is cut into; each takes whole groups, so it must divide `rollout.num_groups`."""
    ratio_level: RatioLevel = "token"
    """What probability ratios are taken of; `gspo` and `topr` bring `sequence`."""
    clip_low: PositiveFloat = 0.2
    clip_high: PositiveFloat = 0.2
    dual_clip: Annotated[float, Field(gt=1.0)] | None = None
    """PPO's surrogate is never below this many times a negative advantage."""
    ratio_cap: PositiveFloat = 5.0
    """Cap on the behaviour ratio: w of `decoupled_ppo`, r of `tis` and `topr` (which bring 1)."""
    kl_coef: NonNegativeFloat = 0.0
    """KL to the policy at the start of RL; 0: no reference is kept."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    entropy_coef: NonNegativeFloat = 0.0
    gigpo_omega: NonNegativeFloat = 1.0
    gamma: Fraction = 0.95
    """Discount per turn of the returns that `gigpo` and `staged` compare."""
    mismatch: MismatchSection = MismatchSection()
    weight_decay: NonNegativeFloat = 0.0
    max_grad_norm: PositiveFloat = 1.0
    pass_tokens: PositiveInt = 4096
    """Tokens forwarded at once (memory); a longer trajectory gets a pass of its own."""
    recompute: bool = False
    """Keep only the input of each layer for the backward pass and compute the rest again: less memory, a third more
    work."""
    threads: PositiveInt = 1
    cores: Cores = None
    ranks: PositiveInt | None = None
    """Processes that share a step's trajectories among them; one for each device of `cluster.devices.learner`, or one,
    unless given. The loss and the update are those of one rank (docs/cluster.md)."""
    parallel: Literal["ddp", "fsdp2"] = "ddp"
    """What several ranks do with the weights: each has them whole, or each has a shard."""
    restarts: NonNegativeInt = 2
    """Times that the learner goes on from its last checkpoint after a rank died or hung, before the run ends."""
    rank_timeout_s: PositiveFloat = 600.0
    """A rank for which the others wait for so long in the middle of a batch hangs, and is killed."""
    stream: bool = False
    """Synchronous training only: gradients accumulate while the rest of the batch is still being played."""

    @model_validator(mode="after")
    def _take_companions_and_check(self) -> Self:
        facts = OBJECTIVES[self.objective]
        for name, value in facts.companions.items():
            if name not in self.model_fields_set:
                self.__dict__[name] = value  # frozen from here on
        if reason := facts.refused_levels.get(self.ratio_level):
            raise ValueError(f"`{self.objective}` has no `ratio_level: {self.ratio_level}`, because {reason}")
        if self.dual_clip is not None and not facts.clips_proximal:
            raise ValueError(
                f"`dual_clip` bounds the clipped surrogate of PPO, which `{self.objective}` does not use: leave it out,"
                f" or choose one of {', '.join(sorted(USES_PROXIMAL))}"
            )
        if self.mismatch.floor >= self.mismatch.cap:
            raise ValueError(
                f"`mismatch.floor` ({self.mismatch.floor}) must be below `mismatch.cap` ({self.mismatch.cap}), because"
                " only weights between the two are kept as they are"
            )
        if self.stream:
            self._check_stream()
        return self

    def _check_stream(self) -> None:
        if self.epochs * self.minibatches > 1:
            raise ValueError(
                f"`stream` trains one step per batch, because later steps need the whole batch first: set `epochs`"
                f" ({self.epochs}) and `minibatches` ({self.minibatches}) to 1, or turn it off"
            )
        if self.advantage in WHOLE_BATCH_ADVANTAGES:
            raise ValueError(
                f"`stream` trains on groups as they come, and the advantage `{self.advantage}` is normalised over the"
                " whole batch: choose one that compares the members of a group, such as `grpo`, or turn `stream` off"
            )
