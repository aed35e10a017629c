"""The seam between rollouts and the learner: batches of finished groups in, weights out.

The learner blocks in `next_batch`; everything asynchronous happens on the other side. This module
imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from rocknroll.trainer.trajectory import Group

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Batch:
    """What one policy version learns from."""

    groups: tuple[Group, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Figures of the rollout side for this iteration; logged beside the learner's own."""


class StreamStopped(Exception):
    """`next_batch` or `ready_groups` will give nothing any more because the stream was asked to stop."""


class Stream(Protocol):
    """Where a learner's batches come from. All calls come from the learner's thread and block.

    Order of calls: `load_state_dict` (only when resuming), `publish` (the weights to begin with),
    `start`, then `next_batch(v)` and `publish(v + 1)` in turn, and at last `stop`, always. A learner that trains
    while the batch is being played calls `ready_groups(v, …)` before `next_batch(v)`, until it has had every group.
    """

    def start(self) -> None:
        """Begin to roll out with the weights published last."""

    def next_batch(self, version: int) -> Batch:
        """Wait for the batch that policy version `version` is trained on.

        Raises:
            StreamStopped: no batch will come; the learner saves a checkpoint and ends.
        """

    def ready_groups(self, version: int, seen: int) -> Sequence[Group]:
        """Wait until more than `seen` groups of the batch for `version` are complete; those beyond `seen`.

        Groups come in order of completion, each once; together they are those of `next_batch(version)`.

        Raises:
            StreamStopped: no further group will come.
        """

    def publish(self, version: int, state: Mapping[str, torch.Tensor]) -> None:
        """Take over new weights. The tensors are the live ones: copy before returning."""

    def state_dict(self) -> dict[str, Any]:
        """What is needed to go on after the last batch handed out, as JSON."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` returned."""

    def stop(self) -> None:
        """End rollouts and free what they hold; idempotent."""
