"""Joins learner and rollouts: get_batch → train → publish, while the rollout process keeps playing.

`ServiceStream` is the learner's stream. Publishing suspends the engine between two decode steps,
swaps the weights, resumes, and lets the scheduler admit what the new version allows. When the rollouts
fail the stream ends instead of raising, so that the learner writes a checkpoint; `failure` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save_file

from rocknroll.trainer.rollout.loop import RolloutFailed
from rocknroll.trainer.rollout.service import RolloutService
from rocknroll.trainer.stream import Batch, StreamStopped
from rocknroll.trainer.trajectory import Group

T = TypeVar("T")


class ServiceStream:
    """A `stream.Stream` over a running `RolloutService`."""

    def __init__(
        self, service: RolloutService, weights: Path, on_start: Callable[[int], None] = lambda version: None
    ) -> None:
        """`weights`: the file that new weights travel in; `on_start` hears which policy version begins."""
        self._service = service
        self._weights = weights
        self._on_start = on_start
        self._version = 0
        self.failure: RolloutFailed | None = None
        """Why the stream ended early."""

    def start(self) -> None:
        """Tell that the learner begins; the service was started by the run, which evaluates before."""
        self.attempt(lambda: self._on_start(self._version))

    def next_batch(self, version: int) -> Batch:
        """The groups to train on at `version`; blocks."""
        batch = self._asked(lambda: self._service.next_batch(version))
        return Batch(groups=batch.groups, metrics=batch.metrics)

    def ready_groups(self, version: int, seen: int) -> Sequence[Group]:
        """Groups of the batch for `version` that are complete, beyond the first `seen`; blocks until there is one."""
        return self._asked(lambda: self._service.ready_groups(version, seen))

    def publish(self, version: int, state: Mapping[str, torch.Tensor]) -> None:
        """Hand `state` to the engine as policy `version`."""
        self._version = version
        self.attempt(lambda: self._service.publish(version, write_weights(state, self._weights)))

    def state_dict(self) -> dict[str, Any]:
        """Nothing: where the rollouts stand is in the run's ledger."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` returned: nothing."""

    def stop(self) -> None:
        """The run stops the service after its last evaluation."""

    def attempt(self, action: Callable[[], None]) -> None:
        """Do something that needs the rollouts; if they fail, or have failed before, the stream ends with it."""
        if self.failure is not None:
            return
        try:
            action()
        except RolloutFailed as failure:
            self.failure = failure

    def _asked(self, question: Callable[[], T]) -> T:
        """What the service answers.

        Raises:
            StreamStopped: the rollouts failed, now or before.
        """
        if self.failure is not None:
            raise StreamStopped(str(self.failure))
        try:
            return question()
        except RolloutFailed as failure:
            self.failure = failure
            raise StreamStopped(str(failure)) from failure


def write_weights(state: Mapping[str, torch.Tensor], path: Path) -> Path:
    """Write a state dict as safetensors, atomically; tensors that share storage are written once each."""
    partial = path.with_suffix(".partial")
    save_file({name: tensor.detach().contiguous().clone() for name, tensor in state.items()}, partial)
    return partial.replace(path)
