"""What the learner notes down while it trains on one batch, and the figures it becomes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rocknroll.trainer.objectives.diagnostics import ratio_metrics

LOGPROBS = ("logp", "behaviour", "proximal")
"""Per-token values that are compared with one another instead of averaged."""


@dataclass
class IterationRecord:
    """Per-token values of every trained action token of an iteration, and where the time went (wall seconds)."""

    wait_s: float = 0.0
    """Waiting for the batch."""
    prepare_s: float = 0.0
    """Advantages, proximal and reference forwards."""
    train_s: float = 0.0
    """Forward and backward passes."""
    publish_s: float = 0.0
    """Handing over the new weights."""
    batch: Mapping[str, float] = field(default_factory=dict)
    """Figures of the batch itself."""
    _values: defaultdict[str, list[NDArray[np.float64]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, name: str, per_token: Tensor) -> None:
        """Note one value per trained action token, [N]."""
        self._values[name].append(per_token.detach().double().cpu().numpy())

    def metrics(self) -> dict[str, float]:
        """The iteration in figures; means run over all its trained action tokens."""
        values = {name: np.concatenate(parts) for name, parts in self._values.items()}
        ratios = ratio_metrics(*(values[name] for name in LOGPROBS)) if "logp" in values else {}
        means = {name: float(array.mean()) for name, array in values.items() if name not in LOGPROBS and len(array)}
        times = {
            "learner/wait_s": self.wait_s,
            "learner/prepare_s": self.prepare_s,
            "learner/train_s": self.train_s,
            "learner/publish_s": self.publish_s,
        }
        return {**self.batch, **ratios, **means, **times}
