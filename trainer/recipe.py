"""The typed recipe: every setting of a run, in one tree of pydantic models.

Imports nothing heavy, so `roll --help`, `roll doctor` and the dashboard can read recipes at once.
Unknown keys are refused; the loader names the nearest known one.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class EnvSection(Section):
    name: str = "alfworld"
    """A registered environment family (`roll doctor` lists them)."""
    config: dict[str, Any] = Field(default_factory=dict)
    """The family's own settings, checked by the family's model."""


class TinyModel(Section):
    """Shape of the Qwen3 decoder that is made when `policy.model` is `tiny`."""

    hidden_size: PositiveInt = 96
    layers: PositiveInt = 3
    heads: PositiveInt = 3
    kv_heads: PositiveInt = 3
    head_dim: PositiveInt = 32
    intermediate_size: PositiveInt = 256
    max_length: PositiveInt = 1024
    verb_last: bool = False
    """Say commands with the verb last (`mug 1 from desk 2 take`), for environments whose commands begin with
    one: what to act on is decided first, and under `rollout.constrained` only among what is there."""


class PolicySection(Section):
    model: str = "tiny"
    """`tiny` (made here, with a word tokenizer trained on expert episodes), a hub id, or a local folder."""
    tiny: TinyModel = TinyModel()
    dtype: Literal["float32", "bfloat16"] = "float32"


class WarmstartSection(Section):
    """Behaviour cloning of expert episodes before RL; cached by content."""

    enabled: bool = True
    games: PositiveInt = 3000
    epochs: PositiveFloat = 3.0
    learning_rate: PositiveFloat = 3e-3
    batch_tokens: PositiveInt = 8192
    mistakes: Fraction = 0.0
    """Chance that a plausible command which is not admissible precedes a step of the expert's; it is not
    imitated, what follows is: without it a policy never saw what its own mistakes lead to."""
    observation_weight: NonNegativeFloat = 0.0
    """Weight of the loss on the environment's own tokens: predicting them teaches a small model to look
    names up in its context, which it needs for its actions, too."""


class SandboxSection(Section):
    runtime: Literal["process"] = "process"
    count: PositiveInt = 32
    """Sandboxes kept ready; one environment, one lease and one trajectory each."""
    step_timeout_s: PositiveFloat = 30.0
    lease_s: PositiveFloat = 60.0


class RolloutSection(Section):
    num_groups: PositiveInt = 12
    """Groups (tasks) per optimiser batch."""
    group_size: PositiveInt = 8
    async_ratio: NonNegativeFloat = 1.0
    """Largest staleness in policy versions; 0 is synchronous. Fractions interleave."""
    max_action_tokens: PositiveInt = 16
    temperature: PositiveFloat = 1.0
    constrained: bool = False
    """Sample among the admissible commands only; the mask travels to the learner."""
    invalid_action_penalty: NonNegativeFloat = 0.2
    turn_penalty: NonNegativeFloat = 0.0
    progress_reward: NonNegativeFloat = 0.0
    """Reward for each change of `info["progress"]`, the share of the goal that is reached, where an
    environment reports one: potential-based shaping, which keeps the best policies the best."""
    infra_retries: NonNegativeInt = 3
    """Times a lost member of a group is played again before the group is given up."""
    max_infra_error_rate: Fraction = 0.5
    """The run stops when more than this share of the last episodes was lost to infrastructure."""
    step_latency_s: NonNegativeFloat = 0.0
    """Injected wait per environment step (benchmarks)."""


class EngineSection(Section):
    kind: Literal["local"] = "local"
    slots: PositiveInt = 32
    max_length: PositiveInt = 4096
    """Tokens of context held for one trajectory; never more than the model's own limit."""
    threads: PositiveInt = 1


class LearnerSection(Section):
    objective: Literal["grpo", "ppo", "decoupled_ppo", "reinforce"] = "decoupled_ppo"
    """`grpo` and `ppo` do not correct for staleness when a batch is one step; `decoupled_ppo` does."""
    advantage: Literal["grpo", "rloo", "gigpo", "staged"] = "grpo"
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
    clip_low: PositiveFloat = 0.2
    clip_high: PositiveFloat = 0.2
    ratio_cap: PositiveFloat = 5.0
    """Cap on the behaviour ratio w of decoupled PPO."""
    kl_coef: NonNegativeFloat = 0.0
    """k3 KL to the policy at the start of RL; 0: no reference is kept."""
    entropy_coef: NonNegativeFloat = 0.0
    gigpo_omega: NonNegativeFloat = 1.0
    gamma: Fraction = 0.95
    """Discount per turn of the returns that `gigpo` and `staged` compare."""
    weight_decay: NonNegativeFloat = 0.0
    max_grad_norm: PositiveFloat = 1.0
    pass_tokens: PositiveInt = 4096
    """Tokens forwarded at once (memory); a longer trajectory gets a pass of its own."""
    threads: PositiveInt = 1


class EvalSection(Section):
    splits: tuple[Literal["train", "seen", "unseen"], ...] = ("unseen",)
    episodes: PositiveInt = 192
    every: NonNegativeInt = 20
    """Iterations between evaluations during training; 0: only before and after."""
    temperature: NonNegativeFloat = 0.0


class Recipe(Section):
    """A run, whole."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")
    seed: NonNegativeInt = 0
    env: EnvSection = EnvSection()
    policy: PolicySection = PolicySection()
    warmstart: WarmstartSection = WarmstartSection()
    sandbox: SandboxSection = SandboxSection()
    rollout: RolloutSection = RolloutSection()
    engine: EngineSection = EngineSection()
    learner: LearnerSection = LearnerSection()
    eval: EvalSection = EvalSection()
    report_to: tuple[str, ...] = ("tensorboard",)
    """Trackers, by transformers' names (`tensorboard`, `wandb`, `swanlab`, `trackio`, `mlflow`)."""
    checkpoint_every: PositiveInt = 20
    output_dir: str = "runs"

    @model_validator(mode="after")
    def _keys_fit_together(self) -> Self:
        tiny, rollout, learner = self.policy.tiny, self.rollout, self.learner
        if tiny.heads % tiny.kv_heads:
            raise ValueError(
                f"`policy.tiny.heads` ({tiny.heads}) must be a multiple of `policy.tiny.kv_heads` ({tiny.kv_heads}),"
                " because each key-value head serves the same number of query heads"
            )
        if learner.minibatches > rollout.num_groups:
            raise ValueError(
                f"`learner.minibatches` ({learner.minibatches}) must not exceed `rollout.num_groups`"
                f" ({rollout.num_groups}), because a group is never split between minibatches"
            )
        if rollout.group_size < 2:
            raise ValueError(
                f"`rollout.group_size` ({rollout.group_size}) must be at least 2, because the advantage"
                f" `{learner.advantage}` compares the members of a group"
            )
        if not self.eval.splits:
            raise ValueError("`eval.splits` must name at least one split, for example [unseen]")
        return self
