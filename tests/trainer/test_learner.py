"""The learner over recorded batches: order of calls, exact resume, stops, and the gradient itself."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import played
import pytest
import torch
from learner_cases import SECTION, THOROUGH, Recording, first_gradient, learner, record, rows, same
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

from rocknroll.trainer.checkpoint import CheckpointError, newest_checkpoint
from rocknroll.trainer.errors import LearnerDiverged
from rocknroll.trainer.learner import Learner, StreamStopped
from rocknroll.trainer.learner_section import LearnerSection
from rocknroll.trainer.trajectory import Group, Outcome


def test_each_version_is_fetched_trained_and_published_in_turn(tmp_path: Path) -> None:
    stream = Recording()
    assert learner(tmp_path, stream).learn()
    turns = [call for version in range(4) for call in (f"batch {version}", f"publish {version + 1}")]
    assert stream.calls == ["start", *turns, "stop"]


def test_every_update_changes_the_weights(tmp_path: Path) -> None:
    stream = Recording()
    learner(tmp_path, stream, THOROUGH).learn()
    assert not any(same(stream.weights[v], stream.weights[v + 1]) for v in range(1, 4))


def test_metrics_have_one_row_per_iteration(tmp_path: Path) -> None:
    stream, seen = Recording(), list[Mapping[str, float]]()
    learner(tmp_path, stream, THOROUGH, on_iteration=seen.append).learn()
    assert [row["iteration"] for row in rows(tmp_path)] == [1, 2, 3, 4] == [row["iteration"] for row in seen]
    wanted = {"loss", "grad_norm", "learning_rate", "rollout/figure", "batch/reward", "ratio/ess", "ratio/w_mean"}
    assert wanted | {"objective/entropy", "objective/kl_reference", "learner/train_s"} <= rows(tmp_path)[0].keys()


def test_tensorboard_gets_every_iteration_in_the_run_folder(tmp_path: Path) -> None:
    learner(tmp_path, Recording(), report_to=("tensorboard",)).learn()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()  # type: ignore[no-untyped-call]
    assert [point.step for point in events.Scalars("train/batch/reward")] == [1, 2, 3, 4]
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "insights", "metrics.jsonl", "tensorboard"}


@pytest.mark.parametrize("section", [SECTION, THOROUGH], ids=["one step a batch", "four steps, decoupled, KL"])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_by_bit(tmp_path: Path, section: LearnerSection) -> None:
    whole = Recording()
    learner(tmp_path / "whole", whole, section).learn()
    first = Recording()
    learner(tmp_path / "cut", first, section.model_copy(update={"iterations": 2})).learn()
    second = Recording()
    assert learner(tmp_path / "cut", second, section, model=played.tiny_qwen3(seed=9)).learn(resume=True)
    assert second.calls[:4] == ["load", "publish 2", "start", "batch 2"]
    assert same(second.weights[2], whole.weights[2])
    assert same(second.weights[3], whole.weights[3])
    assert same(second.weights[4], whole.weights[4])
    assert [row["iteration"] for row in rows(tmp_path / "cut")] == [1, 2, 3, 4]


def test_a_run_stopped_in_the_middle_of_a_batch_resumes_bit_by_bit(tmp_path: Path) -> None:
    whole = Recording()
    learner(tmp_path / "whole", whole, THOROUGH).learn()
    stream = Recording()
    cut = learner(tmp_path / "cut", stream, THOROUGH)
    stream.on_batch = lambda version: cut.request_stop() if version == 1 else None
    assert not cut.learn()
    assert stream.calls[-2:] == ["batch 1", "stop"]
    assert newest_checkpoint(tmp_path / "cut" / "checkpoints").name == "checkpoint-5"
    again = Recording()
    assert learner(tmp_path / "cut", again, THOROUGH, model=played.tiny_qwen3(seed=9)).learn(resume=True)
    assert again.calls[:5] == ["load", "publish 1", "start", "publish 2", "batch 2"]
    assert same(again.weights[4], whole.weights[4])


def test_a_half_trained_batch_is_not_cut_anew(tmp_path: Path) -> None:
    stream = Recording()
    cut = learner(tmp_path, stream, THOROUGH)
    stream.on_batch = lambda version: cut.request_stop()
    cut.learn()
    with pytest.raises(CheckpointError, match="within a batch of 4 optimiser steps"):
        learner(tmp_path, Recording(), THOROUGH.model_copy(update={"epochs": 3})).learn(resume=True)


def test_a_stream_that_ends_leaves_a_checkpoint_and_no_lost_batch(tmp_path: Path) -> None:
    def end(version: int) -> None:
        if version == 2:
            raise StreamStopped

    stream = Recording()
    stream.on_batch = end
    assert not learner(tmp_path, stream).learn()
    assert newest_checkpoint(tmp_path / "checkpoints").name == "checkpoint-2"
    again = Recording()
    assert learner(tmp_path, again).learn(resume=True)
    assert again.cursor == 4


def test_ctrl_c_while_waiting_saves_and_then_interrupts(tmp_path: Path) -> None:
    def interrupt(version: int) -> None:
        if version == 1:
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(5)

    stream = Recording()
    stream.on_batch = interrupt
    with pytest.raises(KeyboardInterrupt):
        learner(tmp_path, stream).learn()
    assert stream.calls[-1] == "stop"
    assert newest_checkpoint(tmp_path / "checkpoints").name == "checkpoint-1"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_while_training_finishes_the_step(tmp_path: Path) -> None:
    stream = Recording()
    publish = stream.publish

    def interrupted_publish(version: int, state: Mapping[str, Tensor]) -> None:
        publish(version, state)
        if version == 2:
            os.kill(os.getpid(), signal.SIGINT)

    stream.publish = interrupted_publish  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        learner(tmp_path, stream).learn()
    assert newest_checkpoint(tmp_path / "checkpoints").name == "checkpoint-2"
    assert len(rows(tmp_path)) == 2


def test_an_error_in_the_stream_stops_it_and_reaches_the_caller(tmp_path: Path) -> None:
    def fail(version: int) -> None:
        raise OSError("lost")

    stream = Recording()
    stream.on_batch = fail
    with pytest.raises(OSError, match="lost"):
        learner(tmp_path, stream).learn()
    assert stream.calls == ["start", "stop"]


def test_resuming_a_finished_run_trains_nothing(tmp_path: Path) -> None:
    first = Recording()
    learner(tmp_path, first).learn()
    stream = Recording()
    finished = learner(tmp_path, stream, model=played.tiny_qwen3(seed=9))
    assert finished.learn(resume=True)
    assert stream.calls == ["publish 4", "stop"]
    assert same(stream.weights[4], first.weights[4])


def test_resuming_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint"):
        learner(tmp_path, Recording()).learn(resume=True)


def test_a_checkpoint_being_written_is_never_taken_for_a_whole_one(tmp_path: Path) -> None:
    stream = Recording()
    learner(tmp_path, stream, checkpoint_every=1).learn()
    (tmp_path / "checkpoints" / "staging" / "checkpoint-9").mkdir(parents=True)
    assert newest_checkpoint(tmp_path / "checkpoints").name == "checkpoint-4"
    assert {path.name for path in (tmp_path / "checkpoints").glob("checkpoint-*")} == {"checkpoint-3", "checkpoint-4"}


def test_a_broken_checkpoint_names_itself(tmp_path: Path) -> None:
    learner(tmp_path, Recording()).learn()
    (tmp_path / "checkpoints" / "checkpoint-4" / "learner.json").write_text("{")
    with pytest.raises(CheckpointError, match="checkpoint-4"):
        learner(tmp_path, Recording()).learn(resume=True)


def test_a_diverging_loss_ends_the_run_with_the_weights_intact(tmp_path: Path) -> None:
    model = played.tiny_qwen3()
    stream = Recording()

    def poison(version: int) -> None:
        if version == 1:
            with torch.no_grad():
                model.model.norm.weight.fill_(float("inf"))

    stream.on_batch = poison
    with pytest.raises(LearnerDiverged, match="learning_rate"):
        learner(tmp_path, stream, model=model).learn()
    assert stream.calls[-1] == "stop"


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "sequence_sum"])
def test_how_a_step_is_cut_into_passes_does_not_change_the_gradient(tmp_path: Path, aggregation: str) -> None:
    gradients = []
    for pass_tokens in (1, 10_000):
        update = {"pass_tokens": pass_tokens, "aggregation": aggregation, "max_grad_norm": 1e9, "iterations": 1}
        gradients.append(first_gradient(tmp_path / str(pass_tokens), SECTION.model_copy(update=update)))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)
    assert gradients[0].abs().max() > 1e-4


def test_recomputing_activations_does_not_change_the_gradient(tmp_path: Path) -> None:
    update = {"max_grad_norm": 1e9, "iterations": 1}
    kept, again = (
        first_gradient(tmp_path / str(recompute), SECTION.model_copy(update=update | {"recompute": recompute}))
        for recompute in (False, True)
    )
    torch.testing.assert_close(kept, again, rtol=1e-5, atol=1e-8)


def test_leaving_out_trajectories_without_gradient_does_not_change_the_gradient(tmp_path: Path) -> None:
    """A vanishing entropy bonus makes the learner forward everything."""

    def half_flat(seed: int) -> tuple[Group, ...]:
        rng = np.random.default_rng(seed)
        flat = [played.trajectory(rng, f"f{i}", turns=2, rewards=[0.0, 1.0]) for i in range(4)]
        return (Group("flat", "task", tuple(flat)), *played.groups(seed))

    update = {"max_grad_norm": 1e9, "iterations": 1}
    lazy = first_gradient(tmp_path / "a", SECTION.model_copy(update=update), half_flat)
    full = first_gradient(tmp_path / "b", SECTION.model_copy(update=update | {"entropy_coef": 1e-30}), half_flat)
    torch.testing.assert_close(lazy, full, rtol=1e-4, atol=1e-7)
    assert rows(tmp_path / "a")[0]["batch/skipped_token_fraction"] > 0
    assert rows(tmp_path / "b")[0]["batch/skipped_token_fraction"] == 0


def test_lost_and_aborted_trajectories_are_counted_and_not_trained(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lost = [played.trajectory(rng, f"x{i}", outcome=outcome) for i, outcome in enumerate(Outcome)]
    stream = Recording(lambda cursor: (Group("g", "task", tuple(lost)),))
    learner(tmp_path, stream, SECTION.model_copy(update={"iterations": 1})).learn()
    assert rows(tmp_path)[0]["batch/trajectories"] == 2
    assert rows(tmp_path)[0]["batch/dropped_trajectories"] == 2


def test_a_batch_without_any_gradient_leaves_the_weights_alone(tmp_path: Path) -> None:
    stream = Recording(lambda cursor: ())
    subject = learner(tmp_path, stream, SECTION.model_copy(update={"iterations": 1, "minibatches": 2}))
    before = {name: tensor.clone() for name, tensor in subject.model.state_dict().items()}
    assert subject.learn()
    assert same(stream.weights[1], before)


def test_rewarded_actions_become_more_likely(tmp_path: Path) -> None:
    """Two members of a group play the same observation; one action is rewarded."""
    rng = np.random.default_rng(1)
    good = played.trajectory(rng, "good", turns=1, rewards=[1.0], prompt=4)
    bad = played.trajectory(rng, "bad", turns=1, rewards=[0.0], prompt=4)
    stream = Recording(lambda cursor: (Group("g", "task", (good, bad)),))
    subject = learner(tmp_path, stream, SECTION.model_copy(update={"iterations": 20, "objective": "reinforce"}))
    before = likelihood(subject, good) - likelihood(subject, bad)
    subject.learn()
    assert likelihood(subject, good) - likelihood(subject, bad) > before + 1


@torch.no_grad()
def likelihood(subject: Learner, trajectory: Any) -> float:
    ids = torch.from_numpy(trajectory.token_ids.astype(np.int64))[None]
    logprobs = torch.log_softmax(subject.model(input_ids=ids).logits[0, :-1], -1)
    taken = logprobs.gather(1, ids[0, 1:, None])[:, 0]
    return float(taken[torch.from_numpy(trajectory.action_mask[1:])].mean())


def test_behaviour_logprobs_of_the_same_weights_give_ratio_one(tmp_path: Path) -> None:
    """What a sampler records with these weights at this temperature, the learner reproduces."""
    model = played.tiny_qwen3()
    temperature = 0.7

    def sampled(cursor: int) -> tuple[Group, ...]:
        return tuple(record(model, group, temperature) for group in played.groups(cursor))

    section = SECTION.model_copy(update={"iterations": 1, "objective": "decoupled_ppo"})
    learner(tmp_path, Recording(sampled), section, model=model, temperature=temperature).learn()
    row = rows(tmp_path)[0]
    assert row["ratio/w_max"] == pytest.approx(1, abs=1e-5)
    assert row["ratio/ess"] == pytest.approx(1, abs=1e-5)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
