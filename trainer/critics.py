"""Critics: one of the policy's size (PPO), or several small ones that learn from disjoint data (AsyPPO).

A critic is a decoder with a value head: at the position that predicts an action token it says what the episode will
still return. Each has an optimiser of its own. Every rank of a learner has all critics whole, and forwards its share.
Formulas: arXiv 2510.01656; masks from their spread: `disagreement.py`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.optimization import get_constant_schedule_with_warmup

from rocknroll.trainer.checkpoint import CheckpointError
from rocknroll.trainer.critics_section import CriticsSection
from rocknroll.trainer.errors import LearnerDiverged
from rocknroll.trainer.objectives.disagreement import split, spread
from rocknroll.trainer.packed_attention import boundary_mask, use_packed_attention
from rocknroll.trainer.packing import PackedPass
from rocknroll.trainer.policy import load_backbone, make_tiny
from rocknroll.trainer.ranks import Ranks
from rocknroll.trainer.sharding import rank_passes
from rocknroll.trainer.trajectory import Group, Trajectory
from rocknroll.trainer.trl_compat import disable_dropout_in_model
from rocknroll.trainer.valuation import Valuation, returns_of

STATE_FILE = "critics.pt"
LEARNING_RATE_RATIO = 4.0
"""A critic's learning rate over the learner's, unless the recipe gives one."""

Array = NDArray[np.float64]


class ValueModel(nn.Module):
    """A decoder and a value head, in float32."""

    def __init__(self, backbone: PreTrainedModel, seed: int) -> None:
        super().__init__()
        self.backbone = backbone.float()
        use_packed_attention(self.backbone)
        disable_dropout_in_model(self.backbone)
        width = self.backbone.config.get_text_config().hidden_size
        self.head = nn.Linear(width, 1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            nn.init.normal_(self.head.weight, std=1 / (width + 1))
            nn.init.zeros_(self.head.bias)

    def forward(self, packed: PackedPass) -> tuple[Tensor, Tensor]:
        """Values [N] of the states in which the action tokens were chosen, and [S] of those behind the last ones."""
        device = self.head.weight.device
        hidden = self.backbone(
            input_ids=packed.token_ids.to(device),
            position_ids=packed.position_ids.to(device),
            attention_mask=boundary_mask(packed.boundaries),
            use_cache=False,
        ).last_hidden_state[0]
        chosen_in = self.head(hidden[packed.predict.to(device)])[:, 0]
        return chosen_in, self.head(hidden[(packed.boundaries[1:] - 1).to(device)])[:, 0]


class _Critic:
    """One value model and its optimiser."""

    def __init__(self, model: ValueModel, section: CriticsSection, learning_rate: float, ranks: Ranks) -> None:
        self.model = model
        self._ranks = ranks
        self._section = section
        self._optimiser = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
        self._schedule = get_constant_schedule_with_warmup(self._optimiser, section.lr_warmup_steps)

    def step(self, trajectories: Sequence[Trajectory], returns: Sequence[Array], pass_tokens: int) -> None:
        """One step on the mean over action tokens of `(V − R)²`.

        Raises:
            LearnerDiverged: the gradient is not finite.
        """
        count = sum(len(of_member) for of_member in returns)
        self._optimiser.zero_grad()
        for made in rank_passes(trajectories, pass_tokens, self._ranks.rank, self._ranks.size):
            if made.counts:
                values, _ = self.model(made.packed)
                target = torch.from_numpy(np.concatenate([returns[m] for m in made.packed.members])).to(values)
                ((values - target).square().sum() / count).backward()
        self._ranks.add_gradients(self.model)
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), self._section.max_grad_norm))
        if not math.isfinite(norm):
            raise LearnerDiverged(
                f"The gradient norm of a critic is {norm}. The policy's weights are intact; lower"
                " `critics.learning_rate` and resume from the last checkpoint."
            )
        self._optimiser.step()
        self._schedule.step()

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "schedule": self._schedule.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._schedule.load_state_dict(state["schedule"])


class Critics:
    """The critics of one run."""

    def __init__(
        self,
        section: CriticsSection,
        policy: PreTrainedModel,
        tokenizer: Any,
        *,
        learning_rate: float,
        pass_tokens: int,
        seed: int,
        ranks: Ranks | None = None,
    ) -> None:
        """`learning_rate`: of the policy; critics without one of their own take LEARNING_RATE_RATIO times as much.

        Raises:
            PolicyError: a critic's model cannot be loaded, or has another vocabulary than the policy.
        """
        self.section = section
        self._ranks = ranks or Ranks()
        rate = section.learning_rate or LEARNING_RATE_RATIO * learning_rate
        backbones = _backbones(section, policy, tokenizer, seed)
        models = [ValueModel(backbone, seed + number) for number, backbone in enumerate(backbones)]
        self._critics = [_Critic(model.to(policy.device), section, rate, self._ranks) for model in models]
        self._seed = seed
        self._pass_tokens = pass_tokens
        self._batches = 0

    def judge(self, groups: Sequence[Group], version: int) -> Valuation:
        """What the critics say of a new batch, having learnt from it where the recipe says so."""
        if self.section.update == "before":
            self._learn(groups, version)
        return self._value([trajectory for group in groups for trajectory in group.trajectories])

    def after_policy(self, groups: Sequence[Group], version: int) -> None:
        """The policy has learnt from the batch and is published."""
        if self.section.update == "after":
            self._learn(groups, version)

    def _learn(self, groups: Sequence[Group], version: int) -> None:
        """Each critic learns the returns of its part of every group."""
        members = [trajectory for group in groups for trajectory in group.trajectories]
        last = self._value(members).last if self.section.bootstrap else [0.0] * len(members)
        returns = [returns_of(t, behind, self.section) for t, behind in zip(members, last, strict=True)]
        parts = split([len(group.trajectories) for group in groups], len(self._critics), version)
        for number, (critic, part) in enumerate(zip(self._critics, parts, strict=True)):
            rng = np.random.default_rng([self._seed, version, number])
            for chosen in self._minibatches([m for m in part if len(returns[m])], rng):
                critic.step([members[m] for m in chosen], [returns[m] for m in chosen], self._pass_tokens)
        self._batches += 1

    def _minibatches(self, part: Sequence[int], rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Members of each optimiser step: the epochs, and before the first of all the steps that come first."""
        section = self.section
        steps = section.epochs * section.minibatches + (section.first_steps if not self._batches else 0)
        while steps > 0:
            for chosen in np.array_split(rng.permutation(np.array(part, dtype=np.int64)), section.minibatches)[:steps]:
                if len(chosen):
                    yield chosen
                steps -= 1

    @torch.no_grad()
    def _value(self, trajectories: Sequence[Trajectory]) -> Valuation:
        """Every critic's view of every trajectory."""
        counts = [int(trajectory.action_mask.sum()) for trajectory in trajectories]
        values = [np.zeros((len(self._critics), count)) for count in counts]
        last = np.zeros((len(self._critics), len(trajectories)))
        for number, critic in enumerate(self._critics):
            for member, (own, behind) in self._seen_by(critic, trajectories).items():
                values[member][number] = own
                last[number, member] = behind
        return Valuation([v.mean(0) for v in values], [spread(v) for v in values], last.mean(0).tolist())

    def _seen_by(self, critic: _Critic, trajectories: Sequence[Trajectory]) -> dict[int, tuple[Array, float]]:
        """One critic's values [n] of each trajectory's states, and of the one behind, by member."""
        seen: dict[int, tuple[Array, float]] = {}
        for made in rank_passes(trajectories, self._pass_tokens, self._ranks.rank, self._ranks.size, last=True):
            if made.counts:
                chosen_in, behind = critic.model(made.packed)
                own = torch.split(chosen_in.double().cpu(), made.packed.mask.sum(1).tolist())
                for member, values, value in zip(made.packed.members, own, behind.double().tolist(), strict=True):
                    seen[member] = (values.numpy(), value)
        return self._ranks.merged(seen)

    def save(self, checkpoint: Path) -> None:
        """Write weights and optimisers into a checkpoint."""
        state = {"batches": self._batches, "critics": [critic.state_dict() for critic in self._critics]}
        torch.save(state, checkpoint / STATE_FILE)

    def load(self, checkpoint: Path) -> None:
        """Take up what `save` wrote.

        Raises:
            CheckpointError: it is not there, or is of other critics.
        """
        file = checkpoint / STATE_FILE
        if not file.exists():
            raise CheckpointError(f"{file} is missing: this run began with `critics.kind=none`, so keep it at that")
        state = torch.load(file, weights_only=True)
        try:
            for critic, own in zip(self._critics, state["critics"], strict=True):
                critic.load_state_dict(own)
        except (ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"{file} is of other critics than the recipe asks for now: resume with the `critics` of the start"
            ) from error
        self._batches = int(state["batches"])


def _backbones(
    section: CriticsSection, policy: PreTrainedModel, tokenizer: Any, seed: int
) -> Iterator[PreTrainedModel]:
    if section.kind == "symmetric":
        yield copy.deepcopy(_decoder(policy))
        return
    for number in range(section.count):
        if section.model == "tiny":
            yield _decoder(make_tiny(section.tiny, tokenizer, seed + 1 + number))
        else:
            yield load_backbone(section.model, len(tokenizer))


def _decoder(model: PreTrainedModel) -> PreTrainedModel:
    """The model without its head."""
    decoder = model.base_model
    assert isinstance(decoder, PreTrainedModel)
    return decoder
