"""The typed recipe: every setting of a run, in one tree of pydantic models.

Imports nothing heavy, so `roll --help`, `roll doctor` and the dashboard can read recipes at once.
Unknown keys are refused; the loader names the nearest known one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from rocknroll.trainer.alerts.section import AlertsSection
from rocknroll.trainer.architecture import Architecture
from rocknroll.trainer.cluster_section import ClusterSection, device_count
from rocknroll.trainer.credit.section import CreditSection
from rocknroll.trainer.critics_section import CriticsSection
from rocknroll.trainer.engine_section import EngineSection
from rocknroll.trainer.learner_section import LearnerSection
from rocknroll.trainer.ratio import Ratio, bends, check_ratio, weight_at
from rocknroll.trainer.section import Cores, Fraction, Section
from rocknroll.trainer.tiny_model import TinyModel


class FaultsSection(Section):
    """Faults and delays injected inside the sandbox, for chaos tests and benchmarks; all off by default."""

    error_rate: Fraction = 0.0
    """Share of steps that raise."""
    hang_rate: Fraction = 0.0
    """Share of steps that never return."""
    latency_s: NonNegativeFloat = 0.0
    """Mean of a normal distribution, cut off at 0, that every step waits for, ..."""
    latency_std_s: NonNegativeFloat = 0.0
    """... and its standard deviation."""
    slow_fraction: Fraction = 0.0
    """Share of episodes whose environment is slow, ..."""
    slow_factor: PositiveFloat = 5.0
    """... and how many times as long its steps then wait."""


class EnvSection(Section):
    name: str = "alfworld"
    """A registered environment family (`roll doctor` lists them), an entry point's, or your own `module:Class`."""
    config: dict[str, Any] = Field(default_factory=dict)
    """The family's own settings, checked by the family's model."""
    faults: FaultsSection = FaultsSection()


DOMAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
LONGEST_DOMAIN_NAME = 40
"""Sandboxes are called after their domain, and their names may be no longer."""


class DomainSection(Section):
    """One of several environments that a run trains on."""

    env: EnvSection
    ratio: Ratio = 1.0
    """Share of the groups, relative to the other domains; `[[0, 1.0], [50, 0.2]]` makes it a curriculum."""
    sandboxes: PositiveInt | None = None
    """Sandboxes kept ready for it; `sandbox.count` unless given."""

    _ratio_makes_sense = field_validator("ratio", mode="before")(check_ratio)

    @property
    def trained_on(self) -> bool:
        """Whether there is an iteration with a weight above 0; without one it is only evaluated."""
        return any(weight_at(self.ratio, iteration) for iteration in bends(self.ratio))


class PolicySection(Section):
    model: str = "tiny"
    """`tiny` (made here, with a word tokenizer trained on expert episodes), a hub id, or a local folder."""
    tiny: TinyModel = TinyModel()
    architecture: Architecture | None = None
    """The shape of `model`, for `roll plan --placement` on a machine that does not have it."""
    dtype: Literal["float32", "bfloat16"] = "float32"


class WarmstartSection(Section):
    """Behaviour cloning of expert episodes before RL; cached by content."""

    enabled: bool = True
    games: PositiveInt = 3000
    """Expert episodes of each environment."""
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
    least: PositiveInt | None = None
    """Let the number follow what engines and learner can use, between this and `count`; not given: always `count`."""
    step_timeout_s: PositiveFloat = 30.0
    """A step that takes longer counts as hung: the episode is lost and the sandbox replaced, ..."""
    reset_timeout_s: PositiveFloat | None = None
    """... and so does a reset, for which it is `step_timeout_s` unless given."""
    lease_s: PositiveFloat = 60.0
    cores: Cores = None


class RedundancySection(Section):
    """Episodes launched beyond what a batch needs; the first to finish win, the others are cancelled."""

    groups: NonNegativeInt = 0
    """Groups in flight beyond those that pacing admits."""
    members: NonNegativeInt = 0
    """Members launched per group beyond `group_size`."""


class TailBatchingSection(Section):
    """Short and long rounds for synchronous training (RollPacker, arXiv 2509.21009)."""

    enabled: bool = False
    eta: Annotated[float, Field(ge=1.0, le=4.0)] = 1.25
    """A short round launches this many times the prompts and the responses it keeps; what is left over
    waits for a long round."""


class DynamicSamplingSection(Section):
    """Sample on until a batch is full of groups whose members differ in reward (DAPO, arXiv 2503.14476)."""

    enabled: bool = False
    max_filtered: PositiveFloat = 3.0
    """Flat groups set aside for one batch at most, in batches: then flat ones are taken, too, and the run goes on."""


class RolloutSection(Section):
    num_groups: PositiveInt = 12
    """Groups (tasks) per optimiser batch."""
    group_size: PositiveInt = 8
    async_ratio: NonNegativeFloat = 1.0
    """Largest staleness in policy versions; 0 is synchronous. Fractions interleave."""
    redundancy: RedundancySection = RedundancySection()
    max_requeues: NonNegativeInt = 0
    """Times a group that cannot be trained on in time any more is cancelled and played anew; then, and with 0
    from the start, the batch waits for it instead, so that slow tasks are trained on, too."""
    prompt_replication: bool = True
    """Place the members of a group on engines one by one; false: the whole group on one engine."""
    tail_batching: TailBatchingSection = TailBatchingSection()
    dynamic_sampling: DynamicSamplingSection = DynamicSamplingSection()
    in_flight: Literal["abort", "keep", "recompute"] = "recompute"
    """Requests under way when new weights arrive: redo the turn, finish it on the old weights, or compute its
    context anew and go on with the new weights."""
    turn_barrier: bool = False
    """All environments of a batch step together, as in batch-level rollouts: a baseline for benchmarks."""
    episode_timeout_s: PositiveFloat = 600.0
    """An episode that takes longer is lost to `episode_timeout`."""
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


class RewardSection(Section):
    """A reward computed from the finished episode, beside what the environment gave, in worker processes."""

    function: str | None = None
    """`package.module:function`, see docs/rollouts/rewards.md."""
    workers: PositiveInt = 2
    where: Literal["here", "cluster"] = "here"
    """Processes of this machine, or actors on the Ray cluster that `cluster.address` means, with a core each."""
    min_timeout_s: PositiveFloat = 2.0
    max_timeout_s: PositiveFloat = 30.0
    timeout_factor: PositiveFloat = 1.5
    """A task's timeout is this many times its longest correct evaluation so far, within the two bounds."""


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
    domains: dict[str, DomainSection] = Field(default_factory=dict)
    """Several environments in one run, by a name of their own, in place of `env` (docs/rollouts/domains.md)."""
    reward: RewardSection = RewardSection()
    policy: PolicySection = PolicySection()
    warmstart: WarmstartSection = WarmstartSection()
    sandbox: SandboxSection = SandboxSection()
    rollout: RolloutSection = RolloutSection()
    engine: EngineSection = EngineSection()
    learner: LearnerSection = LearnerSection()
    critics: CriticsSection = CriticsSection()
    credit: CreditSection = CreditSection()
    eval: EvalSection = EvalSection()
    cluster: ClusterSection = ClusterSection()
    alerts: AlertsSection = AlertsSection()
    report_to: tuple[str, ...] = ("tensorboard",)
    """Trackers, by transformers' names (`tensorboard`, `wandb`, `swanlab`, `trackio`, `mlflow`)."""
    checkpoint_every: PositiveInt = 20
    output_dir: str = "runs"

    @property
    def sources(self) -> Mapping[str, DomainSection]:
        """The environments of the run by domain, whichever way they are given; that of `env` has the name ""."""
        return self.domains or {"": DomainSection(env=self.env)}

    @property
    def learner_ranks(self) -> int:
        """Ranks of the learner, however they are given."""
        return self.learner.ranks or device_count(self.cluster.devices.learner) or 1

    @property
    def environments(self) -> str:
        """What the run plays, for people: `alfworld`, or `easy (alfworld), hard (alfworld)`."""
        return ", ".join(f"{name} ({part.env.name})" if name else part.env.name for name, part in self.sources.items())

    @model_serializer(mode="wrap", when_used="json")
    def _without_what_says_nothing(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What is written down of a run of several domains leaves `env` out: it plays nothing of it. `alerts` that
        nobody changed are left out too, and recipes from before there were any stay what they were."""
        written: dict[str, Any] = whole(self)
        if self.domains:
            written.pop("env", None)
        if self.alerts == AlertsSection():
            written.pop("alerts", None)
        return written

    @model_validator(mode="after")
    def _keys_fit_together(self) -> Self:
        tiny, rollout, learner = self.policy.tiny, self.rollout, self.learner
        if tiny.heads % tiny.kv_heads:
            raise ValueError(
                f"`policy.tiny.heads` ({tiny.heads}) must be a multiple of `policy.tiny.kv_heads` ({tiny.kv_heads}),"
                " because each key-value head serves the same number of query heads"
            )
        if rollout.num_groups % learner.minibatches:
            divisors = ", ".join(str(n) for n in range(1, rollout.num_groups + 1) if rollout.num_groups % n == 0)
            raise ValueError(
                f"`learner.minibatches` ({learner.minibatches}) must divide `rollout.num_groups`"
                f" ({rollout.num_groups}), because each minibatch takes as many whole groups: choose one of {divisors}"
            )
        self._check_rollout()
        self._check_critics()
        self._check_credit()
        self._check_domains()
        self._check_cores()
        self._check_ranks()
        for source in self.sources.values():
            self._check_faults(source.env.faults)
        if rollout.group_size < 2 and learner.advantage not in ("reinforce++", "gae"):
            raise ValueError(
                f"`rollout.group_size` ({rollout.group_size}) must be at least 2, because the advantage"
                f" `{learner.advantage}` compares the members of a group"
            )
        if self.reward.min_timeout_s > self.reward.max_timeout_s:
            raise ValueError(
                f"`reward.min_timeout_s` ({self.reward.min_timeout_s:g}) must not exceed `reward.max_timeout_s`"
                f" ({self.reward.max_timeout_s:g})"
            )
        if not self.eval.splits:
            raise ValueError("`eval.splits` must name at least one split, for example [unseen]")
        return self

    @property
    def bit_exact(self) -> bool:
        """Whether the engine computes bit-exactly, `auto` resolved."""
        asked = self.engine.bit_exact
        if asked != "auto":
            return asked
        return self.engine.kind == "local" and self.rollout.async_ratio == 0 and self.engine.threads == 1

    def _check_rollout(self) -> None:
        rollout = self.rollout
        spare = (rollout.num_groups + rollout.redundancy.groups) * (rollout.group_size + rollout.redundancy.members)
        spare -= rollout.num_groups * rollout.group_size
        if spare > self.sandbox.count:
            raise ValueError(
                f"`rollout.redundancy` launches {spare} episodes beyond a batch, more than the {self.sandbox.count}"
                " sandboxes (`sandbox.count`): the spare ones alone would fill every slot. Lower it, or raise the count"
            )
        if rollout.redundancy.groups and not rollout.max_requeues:
            raise ValueError(
                "`rollout.redundancy.groups` needs `rollout.max_requeues` of at least 1, because groups that lose"
                " a race are cancelled and played again later"
            )
        if rollout.tail_batching.enabled and rollout.async_ratio:
            raise ValueError(
                "`rollout.tail_batching` is for synchronous training: set `rollout.async_ratio` to 0, or turn it off"
            )
        if rollout.tail_batching.enabled and (rollout.redundancy.groups or rollout.redundancy.members):
            raise ValueError("`rollout.tail_batching` launches spare episodes itself: leave `rollout.redundancy` at 0")
        batch = rollout.num_groups * rollout.group_size
        if self.sandbox.least is not None and self.sandbox.least > self.sandbox.count:
            raise ValueError(
                f"`sandbox.least` ({self.sandbox.least}) must not exceed `sandbox.count` ({self.sandbox.count})"
            )
        if self.sandbox.least is not None and rollout.turn_barrier:
            raise ValueError(
                "`rollout.turn_barrier` makes a whole batch step together, and with `sandbox.least` there may be too"
                " few sandboxes for it: leave one of them out"
            )
        if rollout.turn_barrier and (rollout.async_ratio or spare or self.sandbox.count < batch):
            raise ValueError(
                "`rollout.turn_barrier` makes a whole batch step together: it needs `rollout.async_ratio` 0, no"
                f" redundancy, and a sandbox for each of the {batch} episodes (`sandbox.count`)"
            )
        if self.learner.stream and rollout.async_ratio:
            raise ValueError(
                "`learner.stream` is for synchronous training: set `rollout.async_ratio` to 0, or turn it off"
            )

    def _check_critics(self) -> None:
        critics, learner = self.critics, self.learner
        if critics.kind == "none":
            if learner.advantage == "gae":
                raise ValueError(
                    "`learner.advantage: gae` needs critics, which say what a state is worth: set `critics.kind` to"
                    " `asyppo` or `symmetric`, or take an advantage that compares the members of a group"
                )
            return
        if critics.kind == "asyppo" and critics.count > self.rollout.group_size:
            raise ValueError(
                f"`critics.count` ({critics.count}) is more than `rollout.group_size` ({self.rollout.group_size}), so"
                " some critic would learn nothing from a task: each learns from a part of every group of its own"
            )
        if critics.kind == "symmetric" and learner.advantage != "gae":
            raise ValueError(
                "`critics.kind: symmetric` has one critic, which serves nothing but `learner.advantage: gae`:"
                f" `{learner.advantage}` does not ask it. Set `gae`, or leave the critic out"
            )
        if learner.stream:
            raise ValueError(
                "`critics` value the batch as a whole, and `learner.stream` trains on groups as they come: turn one of"
                " them off"
            )
        if critics.tiny.heads % critics.tiny.kv_heads:
            raise ValueError(
                f"`critics.tiny.heads` ({critics.tiny.heads}) must be a multiple of `critics.tiny.kv_heads`"
                f" ({critics.tiny.kv_heads}), because each key-value head serves the same number of query heads"
            )

    def _check_credit(self) -> None:
        credit, learner = self.credit, self.learner
        if credit.kind == "none":
            return
        if learner.ratio_level == "sequence" and credit.kind != "uniform":
            raise ValueError(
                f"`credit.kind: {credit.kind}` tells the tokens of a trajectory apart, and `learner.ratio_level:"
                " sequence` has one ratio for all of them, under which only their mean credit would count: take"
                f" another objective than `{learner.objective}` or another `ratio_level`, or leave credit out"
            )
        if learner.stream:
            raise ValueError(
                "`credit` sorts heads by the first pass of a batch, and `learner.stream` trains on groups as they come:"
                " turn one of them off"
            )
        if learner.recompute:
            raise ValueError(
                "`credit` reads attention in the step's forward, which `learner.recompute` computes twice: turn one of"
                " them off"
            )
        if credit.kind == "coupled" and credit.lookback >= self.rollout.max_action_tokens:
            raise ValueError(
                f"`credit.lookback` ({credit.lookback}) is longer than any response before a token: an action has at"
                f" most {self.rollout.max_action_tokens} tokens (`rollout.max_action_tokens`)"
            )
        longest = self.engine.max_length
        if self.policy.model == "tiny":
            longest = min(longest, self.policy.tiny.max_length)
        if credit.windows.fai_from >= longest:
            raise ValueError(
                f"`credit.windows.fai_from` ({credit.windows.fai_from}) is longer than any response: a trajectory has"
                f" at most {longest} tokens (`engine.max_length`, `policy.tiny.max_length`), so no token would have a"
                " query far enough behind it"
            )

    def _check_ranks(self) -> None:
        ranks, devices = self.learner_ranks, device_count(self.cluster.devices.learner)
        if devices and ranks != devices:
            raise ValueError(
                f"`learner.ranks` ({ranks}) must be the number of `cluster.devices.learner` ({devices}), because each"
                " rank has a device of its own: leave one of the two out"
            )
        if ranks == 1:
            return
        if self.learner.stream:
            raise ValueError(
                f"`learner.stream` trains on groups as they come, and {ranks} ranks share out a whole batch: take one"
                " rank (`learner.ranks`, `cluster.devices.learner`), or turn `stream` off"
            )
        if self.credit.kind != "none":
            raise ValueError(
                f"`credit` sorts heads by the first pass of a batch, and each of {ranks} ranks has another first pass:"
                " take one rank (`learner.ranks`, `cluster.devices.learner`), or leave credit out"
            )
        smallest = self.rollout.num_groups * self.rollout.group_size // self.learner.minibatches
        if ranks > smallest:
            raise ValueError(
                f"`learner.ranks` ({ranks}) is more than the trajectories of an optimiser step ({smallest}), so some"
                " would have nothing to do: take fewer ranks, fewer `learner.minibatches`, or a larger batch"
            )

    def _check_cores(self) -> None:
        shared = sorted(set(self.learner.cores or ()) & set(self.engine.cores or ()))
        if shared:
            raise ValueError(
                f"`learner.cores` and `engine.cores` would fight for the same cores ({', '.join(map(str, shared))}):"
                " both compute all the time, so give each its own, or leave one of them out"
            )

    def _check_faults(self, faults: FaultsSection) -> None:
        longest_s = faults.latency_s * (faults.slow_factor if faults.slow_fraction else 1.0)
        if longest_s >= self.sandbox.step_timeout_s:
            raise ValueError(
                f"`env.faults` has steps wait {longest_s:g} s, and after `sandbox.step_timeout_s`"
                f" ({self.sandbox.step_timeout_s:g} s) they count as hung: lower the one or raise the other"
            )

    def _check_domains(self) -> None:
        if self.domains and "env" in self.model_fields_set:
            raise ValueError(
                "both `env` and `domains` are given, and it is not clear which the run is to play. Leave `env` out,"
                " also of the recipes that this one extends, and make it one of the domains"
            )
        for name in self.domains:
            if not DOMAIN_NAME.fullmatch(name) or len(name) > LONGEST_DOMAIN_NAME:
                raise ValueError(
                    f"`domains`: {name!r} cannot be the name of a domain: use up to {LONGEST_DOMAIN_NAME} letters,"
                    " digits, `_` and `-`, not `-` first"
                )
        ratios = [domain.ratio for domain in self.sources.values()]
        for iteration in sorted({bend for ratio in ratios for bend in bends(ratio)}):
            if not any(weight_at(ratio, iteration) for ratio in ratios):
                raise ValueError(
                    f"`domains`: all ratios are 0 at iteration {iteration}, so there is nothing to play. Give one"
                    " domain a weight above 0 there"
                )
