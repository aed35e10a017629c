"""Forward passes over an experience: log-probabilities to keep, and the loss of each pass of a step.

Everything runs over packed rows, of several ranks each over its share. What a loss compares was computed
when the batch arrived; where the weights have not changed since (one step per batch) π_prox is the
step's own forward instead, and credit reads that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from rocknroll.trainer.credit.assignment import Credit
from rocknroll.trainer.experience import Experience, PerToken
from rocknroll.trainer.iteration_record import IterationRecord
from rocknroll.trainer.learner_section import LearnerSection
from rocknroll.trainer.logprobs import action_logprobs
from rocknroll.trainer.objectives.losses import POLICY_LOSSES
from rocknroll.trainer.objectives.mismatch import mismatch_weight
from rocknroll.trainer.objectives.ratios import LossInput
from rocknroll.trainer.objectives.regularisers import kl_estimate, regularised
from rocknroll.trainer.packing import PackedPass
from rocknroll.trainer.ranks import Ranks
from rocknroll.trainer.sharding import RankPass, rank_passes
from rocknroll.trainer.snapshots import Snapshots

SILENCING = ("clip_low_fraction", "clip_high_fraction", "dual_clip_fraction")
"""Figures of a loss that mark tokens left without a gradient."""


class Passes:
    """The forwards of one learner, or of one of its ranks."""

    def __init__(self, section: LearnerSection, temperature: float, ranks: Ranks) -> None:
        self._section = section
        self._temperature = temperature
        self._ranks = ranks

    @torch.no_grad()
    def score(
        self, model: PreTrainedModel, experience: Experience, members: Sequence[int], credit: Credit | None = None
    ) -> dict[int, PerToken]:
        """Log-probabilities of the members' action tokens under `model`; on the way, `credit` assigns their γ."""
        scored: dict[int, PerToken] = {}
        for made in self._made(experience, members, credit):
            packed = made.packed
            logp, _ = self._forward(model, packed, experience, [members[i] for i in packed.members], credit)
            sizes = packed.mask.sum(1).tolist()
            for index, values in zip(packed.members, torch.split(logp.cpu(), sizes), strict=True):
                if made.counts:
                    scored[members[index]] = values.numpy()
        return self._ranks.merged(scored)

    def score_past(self, snapshots: Snapshots, experience: Experience) -> dict[int, PerToken]:
        """`Experience.past` of the members with a gradient.

        Raises:
            ValueError: a token is of a version whose weights are not kept.
        """
        versions = {m: _versions(experience, m) for m in experience.with_gradient}
        past: dict[int, PerToken] = {}
        for version in sorted({int(v) for own in versions.values() for v in own} - {experience.version}):
            members = [m for m, own in versions.items() if (own == version).any()]
            for m, values in self.score(snapshots.model(version), experience, members).items():
                kept = past.setdefault(m, np.zeros_like(values))
                kept[versions[m] == version] = values[versions[m] == version]
        return past

    def losses(
        self,
        model: PreTrainedModel,
        experience: Experience,
        members: Sequence[int],
        weights: NDArray[np.float64],
        record: IterationRecord,
        credit: Credit | None = None,
        syncing: Callable[[bool], AbstractContextManager[Any]] = lambda final: nullcontext(),
    ) -> Iterator[Tensor]:
        """The sum of weighted losses of each pass of this rank, `weights` [members] being those of the members' tokens.

        `credit` assigns the members' γ in the very forward that the loss is of. Forward and backward of a pass happen
        within `syncing(final)`, which says whether ranks exchange their gradients in it.
        """
        for made in self._made(experience, members, credit):
            packed = made.packed
            own = [members[i] for i in packed.members]
            with syncing(made.final):
                logp, entropy = self._forward(model, packed, experience, own, credit)
                if made.counts:
                    per_token = self._token_losses(packed, experience, own, logp, entropy, record)
                    weight = torch.from_numpy(weights[list(packed.members)]).to(per_token)
                    yield (weight[:, None] * per_token).sum()
                else:
                    yield 0.0 * logp.sum()

    def _made(self, experience: Experience, members: Sequence[int], credit: Credit | None) -> Iterator[RankPass]:
        """This rank's passes over its share of the members."""
        trajectories = [experience.trajectories[m] for m in members]
        ranks, last = self._ranks, credit is not None
        return rank_passes(trajectories, self._section.pass_tokens, ranks.rank, ranks.size, last=last)

    def _forward(
        self,
        model: PreTrainedModel,
        packed: PackedPass,
        experience: Experience,
        members: Sequence[int],
        credit: Credit | None,
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies of a pass's action tokens, [N] each; on the way, `credit` assigns their γ."""
        with nullcontext() if credit is None else credit.watching(packed):
            logp, entropy = action_logprobs(model, packed, self._temperature)
        if credit is not None:
            credit.assign(packed, experience, members, entropy.detach())
        return logp, entropy

    def _token_losses(
        self,
        packed: PackedPass,
        experience: Experience,
        members: Sequence[int],
        logp: Tensor,
        entropy: Tensor,
        record: IterationRecord,
    ) -> Tensor:
        """Loss of each action token, [S, A], 0 where there is none; `logp` and `entropy` [N]."""
        section = self._section
        if not section.entropy_coef:
            entropy = entropy.detach()

        def rows(of_member: Callable[[int], NDArray[Any]]) -> Tensor:
            flat = torch.from_numpy(np.concatenate([of_member(m) for m in members]))
            return packed.rows(flat.to(logp.device).to(logp.dtype))

        given, engine, compared = self._given(packed, experience, members, packed.rows(logp), rows)
        loss, stats = POLICY_LOSSES[section.objective](given, section)
        weight, outside = mismatch_weight(given, engine, section.mismatch)
        figures: dict[str, Tensor] = {"entropy": packed.rows(entropy.detach())}
        kl = None
        if section.kl_coef:
            kl = kl_estimate(section.kl_estimator, given.logp, rows(experience.reference.__getitem__), given.mask)
            figures["kl_reference"] = kl
        if section.mismatch.mode != "off":
            figures["mismatch_outside_fraction"] = outside
        compared |= {"staleness_weight": stats.pop("staleness_weight"), "mismatch_weight": weight}
        compared |= {
            "silenced": torch.stack([s for n, s in stats.items() if n in SILENCING] or [outside & False]).any(0)
        }
        _note(record, given.mask, compared, figures | stats)
        explored = packed.rows(entropy)
        if experience.explored is not None:
            explored = explored * rows(experience.explored.__getitem__)
        return regularised(
            weight * loss,
            given.mask,
            entropy=explored,
            entropy_coef=section.entropy_coef,
            kl=kl,
            kl_coef=section.kl_coef,
        )

    def _given(
        self,
        packed: PackedPass,
        experience: Experience,
        members: Sequence[int],
        logp: Tensor,
        rows: Callable[[Callable[[int], NDArray[Any]]], Tensor],
    ) -> tuple[LossInput, Tensor, dict[str, Tensor]]:
        """What the loss is given, log μ_engine, and the log-probabilities that the record compares; all [S, A]."""
        engine = rows(lambda m: experience.trajectories[m].logprobs[experience.trajectories[m].action_mask])
        known = experience.one_step or bool(experience.proximal)
        proximal = rows(experience.proximal.__getitem__) if experience.proximal else logp.detach()
        # Under the version that is being trained, μ_train is π_prox; under earlier ones it was computed before.
        current = rows(lambda m: _versions(experience, m) == experience.version) > 0
        trainer, trainer_known = proximal, current & known
        if self._section.mismatch.mode != "off":
            past = rows(lambda m: experience.past.get(m, np.zeros(len(experience.advantages[m]))))
            trainer, trainer_known = torch.where(current, proximal, past), torch.ones_like(current)
        behaviour = engine if self._section.mismatch.mode == "off" else trainer
        returns = torch.tensor([experience.trajectories[m].reward for m in members], dtype=logp.dtype)
        given = LossInput(
            logp=logp,
            behaviour=behaviour,
            proximal=proximal,
            advantage=rows(experience.credited),
            mask=packed.mask.to(logp.device),
            segment=packed.segments.to(logp.device),
            returns=returns.to(logp.device),
        )
        compared = {"logp": logp, "behaviour": behaviour, "engine": engine, "trainer": trainer}
        compared |= {"trainer_known": trainer_known} | ({"proximal": proximal} if known else {})
        return given, engine, compared


def _versions(experience: Experience, member: int) -> NDArray[np.int32]:
    """Version of each action token, [n]."""
    trajectory = experience.trajectories[member]
    return trajectory.versions[trajectory.action_mask]


def _note(record: IterationRecord, mask: Tensor, compared: Mapping[str, Tensor], figures: Mapping[str, Tensor]) -> None:
    for name, value in compared.items():
        record.add(name, value[mask])
    for name, value in figures.items():
        record.add(f"objective/{name}", value[mask])
