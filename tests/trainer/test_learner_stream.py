"""Gradients that accumulate while the batch is being played make the batch's update, whatever the order of arrival."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import played
import pytest
import torch
from learner_cases import SECTION, Recording, first_gradient, learner, rows, same
from transformers import GPT2Config, GPT2LMHeadModel

from rocknroll.trainer.checkpoint import newest_checkpoint
from rocknroll.trainer.stream import StreamStopped
from rocknroll.trainer.trajectory import Group, Outcome

GROUPS = 5
STREAMED = SECTION.model_copy(update={"stream": True})


def ragged(seed: int) -> tuple[Group, ...]:
    """Groups of several lengths: one flat, one with members that were lost, one without a learnable member."""
    rng = np.random.default_rng(seed)
    flat = tuple(played.trajectory(rng, f"f{i}", turns=2, rewards=[0.0, 1.0]) for i in range(3))
    outcomes = (Outcome.COMPLETED, Outcome.ABORTED, Outcome.TRUNCATED, Outcome.INFRA_ERROR)
    torn = tuple(played.trajectory(rng, f"x{i}", outcome=outcome) for i, outcome in enumerate(outcomes))
    gone = (played.trajectory(rng, "gone", outcome=Outcome.ABORTED),)
    odd = Group("flat", "t", flat), Group("torn", "t", torn), Group("gone", "t", gone)
    return (*played.groups(seed, 2), *odd)


class Arriving(Recording):
    """Groups complete in a given order, a given number at a time."""

    def __init__(self, order: Sequence[int], at_a_time: int = 1) -> None:
        super().__init__(ragged)
        self._order = order
        self._at_a_time = at_a_time

    def ready_groups(self, version: int, seen: int) -> Sequence[Group]:
        self.on_ready(version, seen)
        groups = ragged(self.cursor + 1)
        return [groups[place] for place in self._order[seen : seen + self._at_a_time]]


def double() -> GPT2LMHeadModel:
    """A model that computes in float64 throughout; Qwen3 and Llama have float32 inside their norms."""
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 256, "vocab_size": played.VOCABULARY}
    return GPT2LMHeadModel(GPT2Config(**sizes)).double()


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "sequence_sum"])
@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (2, 4, 0, 3, 1)])
def test_the_update_equals_the_batch_s(tmp_path: Path, aggregation: str, order: Sequence[int]) -> None:
    settings = {"aggregation": aggregation, "max_grad_norm": 1e9, "iterations": 1, "kl_coef": 0.1}
    section = SECTION.model_copy(update=settings)
    whole = first_gradient(tmp_path / "whole", section, ragged, model=double())
    streamed = section.model_copy(update={"stream": True})
    arriving = first_gradient(
        tmp_path / "arriving", streamed, stream=Arriving(order), model=double(), num_groups=GROUPS
    )
    assert float((whole - arriving).norm() / whole.norm()) < 1e-12
    torch.testing.assert_close(arriving, whole, rtol=1e-6, atol=1e-12)


def test_metrics_equal_the_batch_s(tmp_path: Path) -> None:
    learner(tmp_path / "whole", Recording(ragged), SECTION, model=double()).learn()
    stream = Arriving((3, 1, 4, 0, 2))
    learner(tmp_path / "arriving", stream, STREAMED, model=double(), num_groups=GROUPS).learn()
    for whole, arriving in zip(rows(tmp_path / "whole"), rows(tmp_path / "arriving"), strict=True):
        assert whole.keys() == arriving.keys()
        for name in whole.keys() - {"learner/wait_s", "learner/prepare_s", "learner/train_s", "learner/publish_s"}:
            assert arriving[name] == pytest.approx(whole[name], rel=1e-6, abs=1e-9), name


def test_how_many_groups_come_at_a_time_changes_no_bit(tmp_path: Path) -> None:
    order = (1, 0, 3, 2, 4)
    singly, together = Arriving(order), Arriving(order, at_a_time=3)
    learner(tmp_path / "a", singly, STREAMED, num_groups=GROUPS).learn()
    learner(tmp_path / "b", together, STREAMED, num_groups=GROUPS).learn()
    assert same(singly.weights[4], together.weights[4])


def test_the_learner_trains_on_groups_before_the_batch_is_asked_for(tmp_path: Path) -> None:
    stream = Arriving(range(GROUPS))
    stream.on_ready = lambda version, seen: stream.calls.append(f"ready {version} after {seen}")
    learner(tmp_path, stream, STREAMED.model_copy(update={"iterations": 1}), num_groups=GROUPS).learn()
    ready = [f"ready 0 after {seen}" for seen in range(GROUPS)]
    assert stream.calls == ["start", *ready, "batch 0", "publish 1", "stop"]


def test_a_stream_that_ends_within_a_batch_leaves_no_trace_of_its_groups(tmp_path: Path) -> None:
    whole = Arriving(range(GROUPS))
    learner(tmp_path / "whole", whole, STREAMED, num_groups=GROUPS).learn()

    def end(version: int, seen: int) -> None:
        if (version, seen) == (2, 3):
            raise StreamStopped

    cut = Arriving(range(GROUPS))
    cut.on_ready = end
    model = played.tiny_qwen3()
    assert not learner(tmp_path / "cut", cut, STREAMED, num_groups=GROUPS, model=model).learn()
    assert newest_checkpoint(tmp_path / "cut" / "checkpoints").name == "checkpoint-2"
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in model.parameters())
    again = Arriving(range(GROUPS))
    assert learner(tmp_path / "cut", again, STREAMED, num_groups=GROUPS).learn(resume=True)
    assert same(again.weights[4], whole.weights[4])


def test_a_stop_does_not_wait_for_the_rest_of_the_batch(tmp_path: Path) -> None:
    stream = Arriving(range(GROUPS))
    subject = learner(tmp_path, stream, STREAMED, num_groups=GROUPS)
    stream.on_ready = lambda version, seen: subject.request_stop() if (version, seen) == (1, 2) else None
    assert not subject.learn()
    assert "batch 1" not in stream.calls
    assert newest_checkpoint(tmp_path / "checkpoints").name == "checkpoint-1"


def test_a_batch_of_other_groups_than_were_ready_is_trained_on_as_it_is(tmp_path: Path) -> None:
    """With spare groups in the race another may be taken; what was done for the loser is thrown away and counted."""

    class Overtaken(Recording):
        def ready_groups(self, version: int, seen: int) -> Sequence[Group]:
            return ragged(99)[seen:] if version == 1 else super().ready_groups(version, seen)

    plain, overtaken = Recording(ragged), Overtaken(ragged)
    learner(tmp_path / "plain", plain, SECTION, model=double()).learn()
    learner(tmp_path / "stream", overtaken, STREAMED, model=double(), num_groups=GROUPS).learn()
    for name, tensor in plain.weights[4].items():
        torch.testing.assert_close(overtaken.weights[4][name], tensor, rtol=1e-6, atol=1e-9)
    assert [row["learner/stream_discarded"] for row in rows(tmp_path / "stream")] == [0, 1, 0, 0]


def test_a_batch_without_any_gradient_leaves_the_weights_alone(tmp_path: Path) -> None:
    lost = played.trajectory(np.random.default_rng(0), outcome=Outcome.ABORTED)
    stream = Recording(lambda cursor: (Group("g", "t", (lost,)),))
    model = played.tiny_qwen3()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    section = STREAMED.model_copy(update={"iterations": 1})
    learner(tmp_path, stream, section, model=model, num_groups=1).learn()
    assert same(stream.weights[1], before)


def test_streaming_needs_to_know_how_many_groups_a_batch_has(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="how many a batch has"):
        learner(tmp_path, Recording(), STREAMED)
