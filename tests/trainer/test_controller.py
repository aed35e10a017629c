"""When the rollouts fail, the learner's stream ends, so that a checkpoint is written before anyone hears of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import played
import pytest
import torch

from rocknroll.trainer.controller import ServiceStream
from rocknroll.trainer.rollout.loop import RolloutFailed
from rocknroll.trainer.rollout.service import RolloutBatch
from rocknroll.trainer.storage import StorageError
from rocknroll.trainer.stream import StreamStopped
from rocknroll.trainer.trajectory import Group

WEIGHTS = {"w": torch.ones(2)}


class Service:
    """The learner's end of a rollout process that answers at once, or fails."""

    def __init__(self, fail: Exception | None = None) -> None:
        self.fail = fail
        self.calls: list[str] = []

    def _answer(self, call: str, result: Any) -> Any:
        self.calls.append(call)
        if self.fail is not None:
            raise self.fail
        return result

    def next_batch(self, version: int) -> RolloutBatch:
        batch: RolloutBatch = self._answer(
            f"next_batch {version}", RolloutBatch(played.groups(version), {"m": 1.0}, {})
        )
        return batch

    def ready_groups(self, version: int, seen: int) -> Sequence[Group]:
        groups: Sequence[Group] = self._answer(f"ready_groups {version} {seen}", played.groups(version)[seen:])
        return groups

    def publish(self, version: int, weights: Path) -> None:
        self._answer(f"publish {version} {weights.is_file()}", None)


def stream(service: Service, folder: Path, on_start: Callable[[int], None] = lambda version: None) -> ServiceStream:
    return ServiceStream(service, folder / "weights.safetensors", on_start)  # type: ignore[arg-type]


def test_calls_reach_the_service(tmp_path: Path) -> None:
    service, begun = Service(), list[int]()
    ours = stream(service, tmp_path, begun.append)
    ours.publish(3, WEIGHTS)
    ours.start()
    assert begun == [3]
    assert ours.next_batch(3).metrics == {"m": 1.0}
    assert len(ours.ready_groups(4, 1)) == 2
    assert service.calls == ["publish 3 True", "next_batch 3", "ready_groups 4 1"]


@pytest.mark.parametrize("ask", ["next_batch", "ready_groups"])
def test_failed_rollouts_end_the_stream_and_leave_the_reason(tmp_path: Path, ask: str) -> None:
    ours = stream(Service(RolloutFailed("no sandbox starts")), tmp_path)
    with pytest.raises(StreamStopped):
        ours.next_batch(0) if ask == "next_batch" else ours.ready_groups(0, 0)
    assert str(ours.failure) == "no sandbox starts"


def test_a_failure_to_publish_ends_the_stream_at_the_next_batch(tmp_path: Path) -> None:
    service = Service(RolloutFailed("it died"))
    ours = stream(service, tmp_path)
    ours.publish(1, WEIGHTS)
    service.fail = None
    with pytest.raises(StreamStopped):
        ours.next_batch(1)
    ours.publish(2, WEIGHTS)
    assert service.calls == ["publish 1 True"]


def test_a_failed_evaluation_between_two_batches_ends_the_stream(tmp_path: Path) -> None:
    ours = stream(Service(), tmp_path)

    def evaluate() -> None:
        raise RolloutFailed("too many were lost")

    ours.attempt(evaluate)
    with pytest.raises(StreamStopped):
        ours.next_batch(1)
    assert str(ours.failure) == "too many were lost"


def test_a_damaged_file_is_no_reason_for_a_checkpoint(tmp_path: Path) -> None:
    ours = stream(Service(StorageError("000003.parquet")), tmp_path)
    with pytest.raises(StorageError):
        ours.next_batch(2)
