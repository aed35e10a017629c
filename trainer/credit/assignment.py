"""Gives the action tokens of a batch their γ, from the forward that gives the proximal log-probabilities, which with
one optimiser step per batch is the step's own.

No second forward, and no second model: the chosen layers' attention is reduced while the policy computes it. Every
`refresh_every` iterations the first pass of the batch is reduced exactly, which tells the span of each head, and the
heads are sorted anew into near-sighted and far-sighted ones.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from rocknroll.trainer.checkpoint import CheckpointError
from rocknroll.trainer.credit.rhythm import ATTENTIVE, SCHEMES, Signals, couple
from rocknroll.trainer.credit.section import CreditSection
from rocknroll.trainer.credit.signals import (
    AttentionReader,
    HeadSets,
    Windows,
    attention_layers,
    head_sets,
    read_layers,
)
from rocknroll.trainer.experience import Experience
from rocknroll.trainer.packed_attention import reading
from rocknroll.trainer.packing import PackedPass
from rocknroll.trainer.snapshots import frozen

STATE_FILE = "credit.json"

Array = NDArray[np.float64]


class Credit:
    """The credit of one run; one pass at a time: `watching` around its forward, then `assign`."""

    def __init__(self, section: CreditSection, model: PreTrainedModel, seed: int) -> None:
        self._section = section
        self._seed = seed
        self._copy = frozen(model) if section.source == "copy" else None
        self._layers = read_layers(attention_layers(model.config.get_text_config()))
        self._windows = Windows(section.windows.waad, section.windows.fai_from, section.windows.fai_to)
        self._attentive = section.kind in ATTENTIVE
        self._heads: HeadSets | None = None
        self._classified = -1
        """The version at which the heads were sorted."""
        self._spans = np.zeros(0)
        self._reader: AttentionReader | None = None
        self._figures: defaultdict[str, list[Array]] = defaultdict(list)

    @property
    def copied(self) -> bool:
        """Whether a copy of the policy is read."""
        return self._copy is not None

    def begin(self, version: int, policy: PreTrainedModel) -> PreTrainedModel:
        """Before the first pass of the batch for `version`; the model whose passes are to be watched."""
        self._figures.clear()
        if self._heads is None or version - self._classified >= self._section.refresh_every:
            self._heads = None
            self._classified = version
        if self._copy is None:
            return policy
        self._copy.load_state_dict(policy.state_dict())
        return self._copy

    def watching(self, packed: PackedPass) -> AbstractContextManager[None]:
        """Around the forward of a pass that was planned with `last`."""
        if not self._attentive:
            return nullcontext()
        reduction = "exact" if self._heads is None else self._section.reduction
        self._reader = AttentionReader(packed, self._layers, self._windows, reduction)
        return reading(self._reader)

    def assign(self, packed: PackedPass, experience: Experience, members: Sequence[int], entropy: Tensor) -> None:
        """Fill in `experience.gamma` of the `members` of this pass; `entropy` [N]."""
        waad = fai = np.full(len(packed.predict), np.nan)
        if self._reader is not None:
            if self._heads is None:
                self._spans = self._reader.spans()
                self._heads = head_sets(self._spans, self._section.heads)
            waad, fai = self._reader.waad(self._heads.near), self._reader.fai(self._heads.far)
        ends = np.cumsum(packed.mask.sum(1).numpy())[:-1]
        segments = packed.segments[packed.mask].numpy()
        parts = [np.split(whole, ends) for whole in (waad, fai, segments, entropy.double().cpu().numpy())]
        for member, *of_member in zip(members, *parts, strict=True):
            signals = Signals(*of_member)
            experience.gamma[member] = self._gamma(signals, experience, member)
            if self._attentive:
                experience.signals[member] = signals

    def metrics(self) -> dict[str, float]:
        """Figures of the batch: means over its action tokens."""
        values = {name: np.concatenate(parts) for name, parts in self._figures.items()}
        means = {f"credit/{name}": float(array.mean()) for name, array in values.items() if len(array)}
        if self._heads is not None and self._spans.size:
            means["credit/near_span"] = float(self._spans[self._heads.near].mean())
            means["credit/far_span"] = float(self._spans[self._heads.far].mean())
        return means

    def _gamma(self, signals: Signals, experience: Experience, member: int) -> Array:
        rng = np.random.default_rng([self._seed, experience.version, member])
        gamma = SCHEMES[self._section.kind](signals, self._section, rng)
        if self._section.positive_only:
            gamma = np.where(experience.advantages[member] > 0, gamma, 1.0)
        self._figures["gamma"].append(gamma)
        self._figures["amplified_share"].append(np.greater(gamma, 1.0).astype(np.float64))
        if self._attentive:
            found = couple(signals, self._section)
            self._figures["waad"].append(signals.waad)
            self._figures["fai"].append(signals.fai[~np.isnan(signals.fai)])
            self._figures["coupling_rate"].append(found.after_jump[found.anchors].astype(np.float64))
            self._figures["coupling_by_chance"].append(found.after_jump.astype(np.float64))
        return gamma

    def save(self, checkpoint: Path) -> None:
        """Write what the next batch needs into a checkpoint."""
        if self._attentive:
            state = {"classified": self._classified, "sorted": self._heads is not None, "spans": self._spans.tolist()}
            (checkpoint / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")

    def load(self, checkpoint: Path, version: int) -> None:
        """Take up what `save` wrote when the learner was at `version`.

        Raises:
            CheckpointError: it is not there, and is needed.
        """
        file = checkpoint / STATE_FILE
        if file.exists():
            state = json.loads(file.read_text(encoding="utf-8"))
            self._classified = int(state["classified"])
            self._spans = np.array(state["spans"])
            self._heads = head_sets(self._spans, self._section.heads) if state["sorted"] else None
        elif self._attentive and version:
            raise CheckpointError(
                f"{file} is missing: this run began with a `credit.kind` that reads no attention, so keep it at that"
            )
