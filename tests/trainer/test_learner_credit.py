"""Credit within the learner: read in a forward that is made anyway, applied to advantages alone, resumed bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import played
import pytest
import torch
from learner_cases import SECTION, THOROUGH, Recording, first_gradient, learner, rows, same, stop_at_step

from rocknroll.trainer.checkpoint import CheckpointError
from rocknroll.trainer.credit.rhythm import ATTENTIVE, SCHEMES
from rocknroll.trainer.credit.section import CreditSection, WindowsSection
from rocknroll.trainer.experience import Experience
from rocknroll.trainer.insights import read_insights
from rocknroll.trainer.learner import Learner
from rocknroll.trainer.learner_section import LearnerSection

WINDOWS = WindowsSection(waad=3, fai_from=2, fai_to=9)


def section(kind: str = "coupled", **settings: Any) -> CreditSection:
    return CreditSection(**{"kind": kind, "windows": WINDOWS, "refresh_every": 2, **settings})


def experiences(subject: Learner) -> list[Experience]:
    """Every batch that the learner trains on, as it was at its first step."""
    seen: list[Experience] = []
    prepared = subject._preparation.prepared

    def keep(*arguments: Any, **options: Any) -> Experience:
        seen.append(prepared(*arguments, **options))
        return seen[-1]

    subject._preparation.prepared = keep  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize("kind", sorted(SCHEMES))
@pytest.mark.parametrize("steps", [1, 2], ids=["one step", "two steps"])
def test_every_scheme_gives_each_action_token_its_factor(tmp_path: Path, kind: str, steps: int) -> None:
    settings = THOROUGH.model_copy(update={"epochs": 1, "minibatches": steps, "iterations": 2})
    subject = learner(tmp_path, Recording(), settings, credit=section(kind))
    seen = experiences(subject)
    subject.learn()
    assert len(seen) == 2
    for experience in seen:
        assert sorted(experience.gamma) == experience.with_gradient
        for member, gamma in experience.gamma.items():
            assert gamma.shape == experience.advantages[member].shape
            np.testing.assert_array_equal(experience.credited(member), experience.advantages[member] * gamma)
    assert any((gamma > 1).any() for gamma in seen[0].gamma.values())
    row = rows(tmp_path)[0]
    assert row["credit/gamma"] > 1
    assert ("credit/coupling_rate" in row) is (kind in ATTENTIVE)


def test_no_token_is_added_or_lost_and_the_gradient_is_that_of_larger_advantages(tmp_path: Path) -> None:
    plain = first_gradient(tmp_path / "plain", SECTION)
    larger = first_gradient(tmp_path / "larger", SECTION, credit=section("uniform", uniform=2.0))
    torch.testing.assert_close(larger, 2 * plain, rtol=1e-5, atol=1e-8)
    subject = learner(tmp_path / "credit", Recording(), SECTION, credit=section())
    seen = experiences(subject)
    subject.learn()
    without = learner(tmp_path / "without", Recording(), SECTION)
    bare = experiences(without)
    without.learn()
    for one, other in zip(seen, bare, strict=True):
        assert one.with_gradient == other.with_gradient
        assert [m.weights.tolist() for m in one.minibatches] == [m.weights.tolist() for m in other.minibatches]


def test_positive_advantages_alone_are_amplified_on_request(tmp_path: Path) -> None:
    subject = learner(tmp_path, Recording(), SECTION, credit=section("uniform", positive_only=True))
    seen = experiences(subject)
    subject.learn()
    gammas = np.concatenate([seen[0].gamma[m] for m in seen[0].with_gradient])
    advantages = np.concatenate([seen[0].advantages[m] for m in seen[0].with_gradient])
    np.testing.assert_array_equal(gammas, np.where(advantages > 0, 1.2, 1.0))


def test_reading_leaves_the_proximal_log_probabilities_as_they_are(tmp_path: Path) -> None:
    """Up to rounding: without credit the passes are one token shorter."""
    settings = THOROUGH.model_copy(update={"iterations": 1, "pass_tokens": 10_000})
    kept = []
    for credit in (None, section("coupled", amplification=1.0)):
        subject = learner(tmp_path / str(credit is None), Recording(), settings, credit=credit)
        seen = experiences(subject)
        subject.learn()
        kept.append(seen[0].proximal)
    assert kept[0].keys() == kept[1].keys()
    for member, values in kept[0].items():
        np.testing.assert_allclose(kept[1][member], values, atol=1e-6)


@pytest.mark.parametrize("kind", ["coupled", "uniform"])
def test_with_one_step_credit_takes_no_forward_of_its_own(tmp_path: Path, kind: str) -> None:
    settings = SECTION.model_copy(update={"iterations": 2, "pass_tokens": 10_000})
    forwards = []
    for credit in (None, section(kind)):
        subject = learner(tmp_path / str(credit is None), Recording(), settings, credit=credit)
        calls: list[bool] = []
        subject._policy.register_forward_hook(lambda *_, calls=calls: calls.append(torch.is_grad_enabled()))
        subject.learn()
        forwards.append(calls)
    assert forwards[0] == forwards[1] == [True] * 2
    trajectory = Recording().next_batch(0).groups[0].trajectories[0]
    found = read_insights(tmp_path / "False" / "insights", 1, trajectory.id)
    assert ("waad" in found) is (kind == "coupled") and (found["gamma"] >= 1).all()


def test_reading_leaves_the_gradient_of_a_step_as_it_is(tmp_path: Path) -> None:
    plain = first_gradient(tmp_path / "plain", SECTION)
    read = first_gradient(tmp_path / "read", SECTION, credit=section("coupled", amplification=1.0))
    torch.testing.assert_close(read, plain, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("settings", [SECTION, THOROUGH], ids=["one step", "several"])
def test_a_copy_reads_what_the_policy_would(tmp_path: Path, settings: LearnerSection) -> None:
    kept = []
    for source in ("policy", "copy"):
        subject = learner(tmp_path / source, Recording(), settings, credit=section(source=source))
        seen = experiences(subject)
        subject.learn()
        kept.append([experience.gamma for experience in seen])
    for ours, theirs in zip(*kept, strict=True):
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[member], theirs[member]) for member in ours)


@pytest.mark.parametrize("reduction", ["banded", "exact"])
@pytest.mark.parametrize("steps_before_the_stop", [3, 6])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_by_bit(
    tmp_path: Path, reduction: str, steps_before_the_stop: int
) -> None:
    """Stopped in the middle of a batch, or right behind one; the heads are sorted anew in every second batch."""
    credit = section("coupled", reduction=reduction)
    whole = learner(tmp_path / "whole", Recording(), THOROUGH, credit=credit)
    whole.learn()
    stopped = learner(tmp_path / "cut", Recording(), THOROUGH, credit=credit)
    stop_at_step(stopped, steps_before_the_stop)
    assert not stopped.learn()
    stream = Recording()
    resumed = learner(tmp_path / "cut", stream, THOROUGH, model=played.tiny_qwen3(seed=9), credit=credit)
    assert resumed.learn(resume=True)
    assert same(whole._policy.state_dict(), resumed._policy.state_dict())
    names = [name for name in rows(tmp_path / "whole")[-1] if name.startswith("credit/")]
    assert names
    assert [[row[name] for name in names] for row in rows(tmp_path / "whole")] == [
        [row[name] for name in names] for row in rows(tmp_path / "cut")
    ]


def test_a_run_of_single_steps_resumes_bit_by_bit(tmp_path: Path) -> None:
    """Stopped between two batches for which the heads are sorted only once."""
    settings, credit = SECTION.model_copy(update={"iterations": 4}), section()
    whole = learner(tmp_path / "whole", Recording(), settings, credit=credit)
    whole.learn()
    stopped = learner(tmp_path / "cut", Recording(), settings, credit=credit)
    stop_at_step(stopped, 3)
    assert not stopped.learn()
    resumed = learner(tmp_path / "cut", Recording(), settings, model=played.tiny_qwen3(seed=9), credit=credit)
    assert resumed.learn(resume=True)
    assert same(whole._policy.state_dict(), resumed._policy.state_dict())


def test_a_run_cannot_begin_to_read_attention_in_the_middle(tmp_path: Path) -> None:
    learner(tmp_path, Recording(), SECTION.model_copy(update={"iterations": 2})).learn()
    with pytest.raises(CheckpointError, match=r"credit\.json is missing: this run began with"):
        learner(tmp_path, Recording(), SECTION, credit=section()).learn(resume=True)


def test_heads_are_sorted_anew_as_often_as_asked(tmp_path: Path) -> None:
    settings = SECTION.model_copy(update={"iterations": 5})
    learner(tmp_path, Recording(), settings, credit=section("local", refresh_every=2)).learn()
    spans = [row["credit/near_span"] for row in rows(tmp_path)]
    assert spans[0] == spans[1] != spans[2] == spans[3] != spans[4]
    assert all(row["credit/near_span"] < row["credit/far_span"] for row in rows(tmp_path))
