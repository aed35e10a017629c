"""What the learner notes down while it trains on one batch, and the figures it becomes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rocknroll.trainer.objectives.diagnostics import iteration_metrics

COMPARED = (
    "logp",
    "behaviour",
    "proximal",
    "engine",
    "trainer",
    "trainer_known",
    "staleness_weight",
    "mismatch_weight",
    "silenced",
)
"""Per-token values that are compared with one another instead of averaged: log π_θ, log μ, log π_prox (absent where
it is not known), log μ_engine, log μ_train and whether that is known, the factors of the two corrections, and whether a
clip took the gradient away."""


@dataclass
class IterationRecord:
    """Per-token values of every trained action token of an iteration, and where the time went (wall seconds)."""

    wait_s: float = 0.0
    """Waiting for the batch, or for its next group."""
    prepare_s: float = 0.0
    """Advantages, proximal and reference forwards."""
    train_s: float = 0.0
    """Forward and backward passes."""
    publish_s: float = 0.0
    """Handing over the new weights."""
    batch: Mapping[str, float] = field(default_factory=dict)
    """Figures of the batch itself."""
    discarded: int = 0
    """Times that what was trained while the batch came in was not the batch."""
    _values: defaultdict[str, list[NDArray[np.float64]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, name: str, per_token: Tensor) -> None:
        """Note one value per trained action token, [N]."""
        self._values[name].append(per_token.detach().double().cpu().numpy())

    def discard(self) -> None:
        """Forget the tokens noted so far: they are not trained on."""
        self._values.clear()
        self.discarded += 1

    @property
    def tokens(self) -> dict[str, NDArray[np.float64]]:
        """What was noted, [N] each."""
        return {name: np.concatenate(parts) for name, parts in self._values.items()}

    def metrics(self, of_ranks: Sequence[Mapping[str, NDArray[np.float64]]]) -> dict[str, float]:
        """The iteration in figures; means run over all its trained action tokens.

        `of_ranks`: the `tokens` of every rank's record. Times are this rank's.
        """
        names = {name: None for tokens in of_ranks for name in tokens}
        values = {name: np.concatenate([tokens[name] for tokens in of_ranks if name in tokens]) for name in names}
        ratios = iteration_metrics(values) if "logp" in values else {}
        means = {name: float(array.mean()) for name, array in values.items() if name not in COMPARED and len(array)}
        times = {
            "learner/wait_s": self.wait_s,
            "learner/prepare_s": self.prepare_s,
            "learner/train_s": self.train_s,
            "learner/publish_s": self.publish_s,
            "learner/stream_discarded": float(self.discarded),
        }
        return {**self.batch, **ratios, **means, **times}
