"""Joins learner and rollouts: get_batch → train → publish, while the rollout process keeps playing.

`ServiceStream` is the learner's stream. Publishing suspends the engine between two decode steps,
swaps the weights, resumes, and lets the scheduler admit what the new version allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from rocknroll.trainer.learner import Batch
from rocknroll.trainer.rollout.service import RolloutBatch, RolloutService


class ServiceStream:
    """A `learner.Stream` over a running `RolloutService`."""

    def __init__(self, service: RolloutService, weights: Path, on_batch: Callable[[int, RolloutBatch], None]) -> None:
        self._service = service
        self._weights = weights
        self._on_batch = on_batch

    def start(self) -> None:
        """The service was started by the run: it evaluates before the learner begins."""

    def next_batch(self, version: int) -> Batch:
        """The groups to train on at `version`; blocks."""
        batch = self._service.next_batch()
        self._on_batch(version, batch)
        return Batch(groups=batch.groups, metrics=batch.metrics)

    def publish(self, version: int, state: Mapping[str, torch.Tensor]) -> None:
        """Hand `state` to the engine as policy `version`."""
        self._service.publish(version, write_weights(state, self._weights))

    def state_dict(self) -> dict[str, Any]:
        """The scheduler's cursor."""
        return self._service.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the scheduler's cursor."""
        self._service.load_state_dict(state)

    def stop(self) -> None:
        """The run stops the service after its last evaluation."""


def write_weights(state: Mapping[str, torch.Tensor], path: Path) -> Path:
    """Write a state dict as safetensors, atomically; tensors that share storage are written once each."""
    partial = path.with_suffix(".partial")
    save_file({name: tensor.detach().contiguous().clone() for name, tensor in state.items()}, partial)
    return partial.replace(path)
