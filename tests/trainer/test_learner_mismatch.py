"""The engine's mismatch is measured under the version that sampled each token, and weighs its loss."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import played
import pytest
import torch
from learner_cases import SECTION, Recording, first_gradient, learner, rows, same

from rocknroll.trainer.checkpoint import CheckpointError
from rocknroll.trainer.learner import Batch
from rocknroll.trainer.learner_section import LearnerSection, MismatchSection
from rocknroll.trainer.logprobs import action_logprobs
from rocknroll.trainer.packed_attention import use_packed_attention
from rocknroll.trainer.packing import plan
from rocknroll.trainer.trajectory import Group, Trajectory

STALENESS = 2


def corrected(section: LearnerSection = SECTION, **settings: Any) -> LearnerSection:
    mismatch = MismatchSection(**{"mode": "token", "cap": 1e6} | settings)
    return section.model_copy(update={"mismatch": mismatch})


class Stale(Recording):
    """Trajectories whose turns were sampled by this version and up to STALENESS earlier ones, with the
    log-probabilities that those versions' published weights give, plus `error`: the engine's own."""

    def __init__(self, error: float = 0.0, oldest: int = STALENESS) -> None:
        super().__init__()
        self.error = error
        self._oldest = oldest
        self._model = played.tiny_qwen3()
        use_packed_attention(self._model)

    def next_batch(self, version: int) -> Batch:
        batch = super().next_batch(version)
        return Batch(tuple(self._sampled(group, version) for group in batch.groups), batch.metrics)

    def start(self) -> None:
        super().start()
        self.weights.setdefault(0, {name: tensor.clone() for name, tensor in played.tiny_qwen3().state_dict().items()})

    def _sampled(self, group: Group, version: int) -> Group:
        members = tuple(self._by_versions(member, version) for member in group.trajectories)
        return Group(group.id, group.task_id, members)

    def _by_versions(self, trajectory: Trajectory, version: int) -> Trajectory:
        versions, logprobs = trajectory.versions.copy(), trajectory.logprobs.copy()
        for number, turn in enumerate(trajectory.turns):
            sampled_by = max(0, version - self._oldest + min(number, self._oldest))
            versions[turn.start : turn.end] = sampled_by
            logprobs[turn.start : turn.end] = self.logprobs(trajectory, sampled_by)[turn.start : turn.end] + self.error
        return Trajectory(**vars(trajectory) | {"versions": versions, "logprobs": logprobs})

    def logprobs(self, trajectory: Trajectory, version: int) -> np.ndarray[Any, Any]:
        self._model.load_state_dict(self.weights[version])
        return scored(self._model, trajectory)


@torch.no_grad()
def scored(model: Any, trajectory: Trajectory) -> np.ndarray[Any, Any]:
    (packed,) = plan([trajectory], 10_000)
    values = np.zeros(len(trajectory.token_ids), dtype=np.float32)
    values[trajectory.action_mask] = action_logprobs(model, packed, 1.0)[0].numpy()
    return values


@pytest.mark.parametrize("minibatches", [1, 3])
def test_each_token_is_scored_by_the_weights_that_sampled_it(tmp_path: Path, minibatches: int) -> None:
    section = corrected(SECTION.model_copy(update={"minibatches": minibatches}))
    learner(tmp_path, Stale(), section, max_staleness=STALENESS).learn()
    for row in rows(tmp_path):
        assert row["mismatch/m_max"] == pytest.approx(1, abs=1e-4)
        assert row["correction/mismatch_alive"] == 0
    assert rows(tmp_path)[3]["staleness/max"] == STALENESS
    assert rows(tmp_path)[3]["ratio/w_max"] > 1.01


def test_the_engine_s_own_error_is_what_the_correction_sees(tmp_path: Path) -> None:
    learner(tmp_path, Stale(error=0.1), corrected(), max_staleness=STALENESS).learn()
    for row in rows(tmp_path):
        assert row["mismatch/m_mean"] == pytest.approx(np.exp(-0.1), rel=1e-4)
        assert row["correction/mismatch_alive"] == 1


def test_without_the_correction_fresh_tokens_still_show_the_mismatch(tmp_path: Path) -> None:
    learner(tmp_path, Stale(error=0.1), SECTION).learn()
    for row in rows(tmp_path):
        assert row["mismatch/m_mean"] == pytest.approx(np.exp(-0.1), rel=1e-4)
        assert row["correction/mismatch_alive"] == 0


def test_staleness_is_corrected_against_the_trainer_s_own_log_probability(tmp_path: Path) -> None:
    """With the correction, the engine's error is no part of w; without it, it is."""
    for name, section in (("on", corrected()), ("off", SECTION)):
        learner(tmp_path / name, Stale(error=0.3, oldest=0), section, max_staleness=STALENESS).learn()
    assert rows(tmp_path / "on")[0]["ratio/w_mean"] == pytest.approx(1, abs=1e-4)
    assert rows(tmp_path / "off")[0]["ratio/w_mean"] == pytest.approx(np.exp(-0.3), rel=1e-4)


def noisy(cursor: int) -> tuple[Group, ...]:
    """Fresh tokens that the engine's kernels gave other probabilities than the trainer's."""
    model = played.tiny_qwen3()
    use_packed_attention(model)
    rng = np.random.default_rng(7)

    def member(trajectory: Trajectory) -> Trajectory:
        noise = np.where(trajectory.action_mask, rng.normal(0, 0.3, len(trajectory.token_ids)), 0)
        return Trajectory(**vars(trajectory) | {"logprobs": (scored(model, trajectory) + noise).astype(np.float32)})

    return tuple(Group(g.id, g.task_id, tuple(map(member, g.trajectories))) for g in played.groups(cursor))


@pytest.mark.parametrize(
    "settings", [{}, {"cap": 1.1, "floor": 0.9}, {"cap": 1.2, "exceed": "mask"}, {"mode": "sequence"}]
)
def test_the_gradient_is_that_of_the_loss_weighed_by_m(tmp_path: Path, settings: Mapping[str, Any]) -> None:
    """By hand, trajectory by trajectory: `−Σ m·A·∇log π / tokens`."""
    update = {"objective": "reinforce", "iterations": 1, "max_grad_norm": 1e9, "advantage": "dr_grpo"}
    ours = first_gradient(tmp_path, corrected(SECTION.model_copy(update=update), **settings), noisy)
    chosen = {"mode": "token", "cap": 1e6, "floor": 0.0, "exceed": "clip"} | settings
    model = played.tiny_qwen3()
    use_packed_attention(model)
    groups = noisy(1)
    tokens = sum(int(t.action_mask.sum()) for g in groups for t in g.trajectories)
    for group in groups:
        for trajectory in group.trajectories:
            (packed,) = plan([trajectory], 10_000)
            logp, _ = action_logprobs(model, packed, 1.0)
            log_m = logp.detach() - torch.from_numpy(trajectory.logprobs[trajectory.action_mask])
            m = (log_m.sum().expand_as(log_m) if chosen["mode"] == "sequence" else log_m).exp()
            outside = (m < chosen["floor"]) | (m > chosen["cap"])
            m = m.clamp(chosen["floor"], chosen["cap"]) if chosen["exceed"] == "clip" else m.masked_fill(outside, 0)
            advantage = trajectory.reward - group.rewards.mean()
            (-(m * logp).sum() * advantage / tokens).backward()  # type: ignore[no-untyped-call]
    theirs = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_tokens_out_of_bounds_are_counted(tmp_path: Path) -> None:
    section = corrected(SECTION.model_copy(update={"iterations": 1}), cap=1.2)
    learner(tmp_path, Recording(noisy), section).learn()
    assert 0.1 < rows(tmp_path)[0]["objective/mismatch_outside_fraction"] < 0.5


@pytest.mark.parametrize("cut_within_a_batch", [False, True])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_by_bit(tmp_path: Path, cut_within_a_batch: bool) -> None:
    section = corrected(SECTION.model_copy(update={"minibatches": 3, "epochs": 2}))
    whole = Stale(error=0.1)
    learner(tmp_path / "whole", whole, section, max_staleness=STALENESS).learn()
    first = Stale(error=0.1)
    if cut_within_a_batch:
        cut = learner(tmp_path / "cut", first, section, max_staleness=STALENESS)
        first.on_batch = lambda version: cut.request_stop() if version == 2 else None
    else:
        stopped = section.model_copy(update={"iterations": 2})
        cut = learner(tmp_path / "cut", first, stopped, max_staleness=STALENESS)
    cut.learn()
    second = Stale(error=0.1)
    second.weights = dict(first.weights)
    again = learner(tmp_path / "cut", second, section, max_staleness=STALENESS, model=played.tiny_qwen3(seed=9))
    assert again.learn(resume=True)
    assert same(second.weights[4], whole.weights[4])


def test_a_token_of_weights_that_are_not_kept_is_refused(tmp_path: Path) -> None:
    subject = learner(tmp_path, Stale(), corrected(), max_staleness=1)
    with pytest.raises(ValueError, match=r"sampled by version 0, whose weights are not kept any more \(kept: 1\)"):
        subject.learn()


def test_a_run_cannot_begin_to_correct_in_the_middle(tmp_path: Path) -> None:
    learner(tmp_path, Stale(), SECTION.model_copy(update={"iterations": 2}), max_staleness=STALENESS).learn()
    again = learner(tmp_path, Stale(), corrected(), max_staleness=STALENESS)
    with pytest.raises(CheckpointError, match="no weights of earlier versions"):
        again.learn(resume=True)


def test_no_weights_are_kept_where_nothing_is_corrected(tmp_path: Path) -> None:
    learner(tmp_path, Stale(), SECTION, max_staleness=STALENESS).learn()
    assert not list(tmp_path.rglob("snapshots*"))
