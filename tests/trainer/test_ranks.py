"""A learner of two ranks gives what one rank gives, resumes, and ends in time when a rank dies."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from learner_cases import Recording, rows, same
from several_ranks import CPU, Second, alone, batches, saved_policy, second, task
from torch import Tensor

from rocknroll.trainer import learning
from rocknroll.trainer.checkpoint import CheckpointError, newest_checkpoint
from rocknroll.trainer.errors import LearnerDiverged, LearnerRankLost
from rocknroll.trainer.learner import Learner
from rocknroll.trainer.learning import learner_of, rank_of
from rocknroll.trainer.policy import load_policy
from rocknroll.trainer.ranks import Ranks
from rocknroll.trainer.stream import Batch

CLOSE = 1e-5
TWO = {"ranks": 2}
ASYPPO = {
    "critics": {
        "kind": "asyppo",
        "count": 2,
        "tiny": {"hidden_size": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8},
        "learning_rate": 1e-3,
    },
    "learner": {"advantage": "gae"},
}
CASES: Mapping[str, Mapping[str, Any]] = {
    "four steps a batch, KL, entropy": {},
    "critics": ASYPPO,
    "mismatch": {"learner": {"mismatch": {"mode": "token"}}},
    "one step a batch, a mean of sequences": {
        "learner": {"epochs": 1, "minibatches": 1, "aggregation": "sequence_mean"}
    },
    "fsdp2": {"learner": {"parallel": "fsdp2"}},
}


@pytest.fixture(scope="module")
def other() -> Iterator[Second]:
    with second() as rank:
        SHARED.add(rank.pid)
        yield rank


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_policy(tmp_path_factory.mktemp("policy") / "saved")


def with_ranks(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {**changes, "learner": {**changes.get("learner", {}), **TWO}}


def apart(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES.keys())
def test_two_ranks_give_the_loss_and_the_weights_of_one(
    other: Second, policy: Path, tmp_path: Path, changes: Mapping[str, Any]
) -> None:
    one, two = Recording(batches), Recording(batches)
    alone(task(tmp_path / "one", policy, **changes), one)
    other.learn(task(tmp_path / "two", policy, **with_ranks(changes)), two)
    assert two.calls == one.calls
    for row, expected in zip(rows(tmp_path / "two"), rows(tmp_path / "one"), strict=True):
        assert row.keys() == expected.keys()
        figures = [name for name in expected if not name.startswith("learner/")]
        assert {name: row[name] for name in figures} == pytest.approx(
            {name: expected[name] for name in figures}, abs=10 * CLOSE, rel=1e-3
        )
        assert row["loss"] == pytest.approx(expected["loss"], abs=CLOSE)
    assert apart(one.weights[4], two.weights[4]) < CLOSE
    assert apart(one.weights[4], one.weights[1]) > 100 * CLOSE


@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
def test_a_run_of_two_ranks_stopped_in_the_middle_of_a_batch_resumes_bit_by_bit(
    other: Second, policy: Path, tmp_path: Path, parallel: str
) -> None:
    settings = {"learner": {**TWO, "parallel": parallel}}
    whole = Recording(batches)
    other.learn(task(tmp_path / "whole", policy, **settings), whole)
    first, second = Recording(batches), Recording(batches)

    def stop_in_second_batch(learner: Learner) -> None:
        first.on_batch = lambda version: learner.request_stop() if version == 1 else None

    other.learn(task(tmp_path / "cut", policy, **settings), first, stop_in_second_batch)
    assert newest_checkpoint(tmp_path / "cut" / "checkpoints").name == "checkpoint-5"
    ended = other.learn(task(tmp_path / "cut", policy, resume=True, **settings), second)
    assert second.calls[:4] == ["load", "publish 1", "start", "publish 2"]
    assert same(whole.weights[4], second.weights[4])
    assert [row["iteration"] for row in rows(tmp_path / "cut")] == [1, 2, 3, 4]
    ended.save_policy(tmp_path / "saved")
    saved, _ = load_policy(str(tmp_path / "saved"))
    assert same(saved.state_dict(), whole.weights[4])


def test_a_run_goes_on_with_another_number_of_ranks(other: Second, policy: Path, tmp_path: Path) -> None:
    whole, cut = Recording(batches), Recording(batches)
    alone(task(tmp_path / "whole", policy), whole)
    other.learn(task(tmp_path / "cut", policy, learner={**TWO, "iterations": 2}), Recording(batches))
    alone(task(tmp_path / "cut", policy, resume=True), cut)
    assert apart(whole.weights[4], cut.weights[4]) < CLOSE


def test_a_sharded_run_is_not_resumed_as_another(other: Second, policy: Path, tmp_path: Path) -> None:
    short = {"iterations": 1, **TWO}
    other.learn(task(tmp_path, policy, learner={**short, "parallel": "fsdp2"}), Recording(batches))
    with pytest.raises(CheckpointError, match="resume with the `parallel` of the start"):
        alone(task(tmp_path, policy, resume=True), Recording(batches))


def test_a_stream_that_ends_ends_all_ranks_with_a_checkpoint(other: Second, policy: Path, tmp_path: Path) -> None:
    def end(version: int) -> None:
        if version == 1:
            raise KeyboardInterrupt

    stream = Recording(batches)
    stream.on_batch = end
    other.learn(task(tmp_path, policy, learner=TWO), stream)
    assert newest_checkpoint(tmp_path / "checkpoints").name == "checkpoint-4"


def test_a_loss_that_is_no_number_at_one_rank_ends_all(policy: Path, tmp_path: Path) -> None:
    def poisoned(cursor: int) -> Any:
        groups = batches(cursor)
        groups[0].trajectories[0].logprobs[groups[0].trajectories[0].action_mask] = float("nan")
        return groups

    settings = {"learner": {**TWO, "objective": "tis", "epochs": 1, "minibatches": 1}}
    with (
        pytest.raises(LearnerDiverged, match="loss is nan"),
        learner_of(task(tmp_path, policy, **settings), Recording(poisoned)) as learner,  # type: ignore[arg-type]
    ):
        learner.learn()
    assert not orphans()


def test_a_rank_that_is_killed_ends_the_run_by_name(policy: Path, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill(version: int) -> None:
        if version == 2:
            (victim,) = orphans()
            killed.append(victim)
            os.kill(victim, signal.SIGKILL)

    stream = Recording(batches)
    stream.on_batch = kill
    stuck = task(tmp_path, policy, learner=TWO)
    with (
        pytest.raises(LearnerRankLost, match=r"rank 1 of 2 \(process \d+\) was killed by SIGKILL") as lost,
        learner_of(stuck, stream) as learner,  # type: ignore[arg-type]
    ):
        learner.learn()
    assert str(killed[0]) in str(lost.value)
    assert not orphans()
    assert stream.calls[-1] == "stop"


def test_a_rank_that_hangs_is_named_and_killed(policy: Path, tmp_path: Path) -> None:
    hung: list[int] = []

    def hang(version: int) -> None:
        if version == 2:
            hung.extend(orphans())
            os.kill(hung[0], signal.SIGSTOP)

    stream = Recording(batches)
    stream.on_batch = hang
    stuck = task(tmp_path, policy, learner={**TWO, "rank_timeout_s": 15.0})
    with (
        pytest.raises(LearnerRankLost, match=r"rank 1 \(process \d+\) of 2 did not answer the others") as lost,
        learner_of(stuck, stream) as learner,  # type: ignore[arg-type]
    ):
        learner.learn()
    assert [str(pid) in str(lost.value) for pid in hung] == [True]
    assert not orphans()


class Slow(Recording):
    """Takes longer than ranks are silent for, once, in one of its calls."""

    def __init__(self, where: str) -> None:
        super().__init__(batches)
        self.where = where

    def next_batch(self, version: int) -> Batch:
        if (self.where, version) == ("batch", 1):
            time.sleep(12.0)
        return super().next_batch(version)

    def publish(self, version: int, state: Mapping[str, Tensor]) -> None:
        if (self.where, version) == ("publish", 1):
            time.sleep(12.0)
        super().publish(version, state)


@pytest.mark.parametrize("where", ["batch", "publish"])
def test_rank_0_is_waited_for_while_it_waits_for_others(
    other: Second, policy: Path, tmp_path: Path, where: str
) -> None:
    settings = {
        "critics": {**ASYPPO["critics"], "update": "after"},
        "learner": {**ASYPPO["learner"], **TWO, "rank_timeout_s": 10.0, "iterations": 2},
    }
    other.learn(task(tmp_path, policy, **settings), Slow(where))
    assert len(rows(tmp_path)) == 2


def test_a_rank_that_cannot_begin_ends_the_run_with_its_reason(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "device_of", lambda recipe, rank: CPU)
    recipe_of_gpus = task(tmp_path, policy, learner={}, cluster={"gpus_per_node": 2, "devices": {"learner": 2}})
    with (
        pytest.raises(LearnerRankLost, match=r"rank 1 of 2 .* failed \(RecipeError: .*puts rank 1 on GPU 1"),
        learner_of(recipe_of_gpus, Recording(batches)),  # type: ignore[arg-type]
    ):
        raise AssertionError("not all ranks are there")
    assert not orphans()


def test_torchrun_is_refused(policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = rank_of(task(tmp_path, policy), Recording(batches), Ranks(), CPU)  # type: ignore[arg-type]
    assert subject.accelerator.num_processes == 1
    with pytest.raises(NotImplementedError, match=r"start `roll` without torchrun, and set `learner\.ranks`"):
        rank_of(task(tmp_path, policy), Recording(batches), Ranks(size=2), CPU)  # type: ignore[arg-type]


def orphans() -> list[int]:
    """Processes of ranks that this process started, through the server that they are forked from."""
    servers = [child for child in psutil.Process().children() if "forkserver" in " ".join(child.cmdline())]
    return [rank.pid for server in servers for rank in server.children() if rank.pid not in SHARED]


SHARED: set[int] = set()
"""The process of `other`, which outlives a test."""
