"""Critics: what they learn from, what they say, and how a learner with them goes on after a stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import played
import pytest
import torch
from learner_cases import SECTION, THOROUGH, Recording, first_gradient, learner, rows, same, stop_at_step

from rocknroll.trainer.checkpoint import CheckpointError
from rocknroll.trainer.critics import Critics
from rocknroll.trainer.critics_section import CriticsSection, MiniModel
from rocknroll.trainer.errors import LearnerDiverged
from rocknroll.trainer.packing import plan
from rocknroll.trainer.policy import PolicyError, build_tokenizer, load_backbone, save_policy
from rocknroll.trainer.trajectory import Group, Outcome
from rocknroll.trainer.valuation import returns_of

TINY = MiniModel(hidden_size=16, layers=1, heads=2, kv_heads=1, head_dim=8, intermediate_size=16)
TOKENIZER = build_tokenizer([f"word{'x' * n}" for n in range(played.VOCABULARY - 5)])
ASYPPO = CriticsSection(kind="asyppo", tiny=TINY, first_steps=2, learning_rate=1e-2)
SYMMETRIC = CriticsSection(kind="symmetric", first_steps=2, learning_rate=1e-2)
GAE = THOROUGH.model_copy(update={"advantage": "gae"})


def critics(section: CriticsSection = ASYPPO, pass_tokens: int = 64, seed: int = 0) -> Critics:
    policy = played.tiny_qwen3()
    return Critics(section, policy, TOKENIZER, learning_rate=1e-2, pass_tokens=pass_tokens, seed=seed)


def error(subject: Critics, groups: tuple[Group, ...]) -> float:
    members = [t for group in groups for t in group.trajectories]
    values = subject._value(members).values
    return float(
        np.mean(
            np.concatenate(
                [(v - returns_of(t, 0.0, subject.section)) ** 2 for v, t in zip(values, members, strict=True)]
            )
        )
    )


@pytest.mark.parametrize("section", [ASYPPO, SYMMETRIC], ids=["asyppo", "symmetric"])
def test_critics_learn_the_returns(section: CriticsSection) -> None:
    subject, groups = critics(section), played.groups(0)
    before = error(subject, groups)
    for version in range(30):
        subject.judge(groups, version)
    assert error(subject, groups) < 0.3 * before


@pytest.mark.parametrize("pass_tokens", [1, 10_000])
def test_values_are_those_of_each_trajectory_alone(pass_tokens: int) -> None:
    """The value of an action token is that of the position which predicts it, whatever lies beside it in the pass."""
    groups = played.groups(1)
    members = [t for group in groups for t in group.trajectories]
    subject = critics(pass_tokens=pass_tokens)
    found = subject._value(members)
    for index, trajectory in enumerate(members):
        ids = torch.from_numpy(trajectory.token_ids.astype(np.int64))[None]
        positions = np.flatnonzero(trajectory.action_mask)
        each = []
        for critic in subject._critics:
            with torch.no_grad():
                hidden = critic.model.backbone(input_ids=ids, use_cache=False).last_hidden_state[0]
                each.append(critic.model.head(hidden)[:, 0].double().numpy())
        np.testing.assert_allclose(found.values[index], np.mean(each, axis=0)[positions - 1], atol=1e-6)
        np.testing.assert_allclose(found.sigmas[index], np.std(each, axis=0)[positions - 1], atol=1e-6)
        assert found.last[index] == pytest.approx(np.mean(each, axis=0)[positions[-1]], abs=1e-6)


def test_each_critic_sees_its_own_part_of_every_group() -> None:
    groups = played.groups(2)
    subject = critics()
    seen: list[set[str]] = []
    for critic in subject._critics:
        mine: set[str] = set()
        seen.append(mine)
        step = critic.step

        def note(trajectories: Any, *rest: Any, _step: Any = step, _mine: set[str] = mine) -> None:
            _mine.update(t.id for t in trajectories)
            _step(trajectories, *rest)

        critic.step = note  # type: ignore[method-assign]
    subject.judge(groups, 0)
    assert not seen[0] & seen[1]
    for group in groups:
        assert [len({t.id for t in group.trajectories} & part) for part in seen] == [2, 2]


def test_critics_are_seeded_apart_and_alike_in_every_run() -> None:
    one, other = critics(), critics()
    weights = [[p.detach() for p in critic.model.parameters()] for c in (one, other) for critic in c._critics]
    assert all(torch.equal(a, b) for a, b in zip(weights[0], weights[2], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(weights[0], weights[1], strict=True))
    assert not all(
        torch.equal(a, b.detach())
        for a, b in zip(weights[0], critics(seed=5)._critics[0].model.parameters(), strict=True)
    )


def test_the_policy_and_the_symmetric_critic_share_no_weight() -> None:
    policy = played.tiny_qwen3()
    subject = Critics(SYMMETRIC, policy, TOKENIZER, learning_rate=1e-2, pass_tokens=64, seed=0)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    assert same(subject._critics[0].model.backbone.state_dict(), policy.base_model.state_dict())
    subject.judge(played.groups(0), 0)
    assert same(before, policy.state_dict())


def test_how_a_step_is_cut_into_passes_does_not_change_it() -> None:
    groups = played.groups(3)
    values = []
    for pass_tokens in (1, 10_000):
        subject = critics(pass_tokens=pass_tokens)
        values.append(np.concatenate(subject.judge(groups, 0).values))
    np.testing.assert_allclose(values[0], values[1], atol=1e-5)


@pytest.mark.parametrize("update", ["before", "after"])
def test_first_steps_come_once_and_updates_when_asked(tmp_path: Path, update: str) -> None:
    section = ASYPPO.model_copy(update={"update": update, "epochs": 2, "minibatches": 3})
    subject = learner(tmp_path, Recording(), GAE, critics=section, tokenizer=TOKENIZER)
    assert subject._critics is not None
    steps: list[int] = []
    stepped = subject._critics._critics[0].step
    policy_steps = 0

    def note(*arguments: Any) -> None:
        steps.append(policy_steps)
        stepped(*arguments)

    subject._critics._critics[0].step = note  # type: ignore[method-assign]
    train = subject.training_step

    def count(*arguments: Any, **options: Any) -> Any:
        nonlocal policy_steps
        policy_steps += 1
        return train(*arguments, **options)

    subject.training_step = count  # type: ignore[method-assign]
    subject.learn()
    first = 4 if update == "after" else 0
    assert steps == [first] * 8 + [first + 4 * batch for batch in (1, 2, 3) for _ in range(6)]


def test_masked_tokens_have_no_advantage_and_no_bonus_for_entropy(tmp_path: Path) -> None:
    everything = ASYPPO.model_copy(update={"agreeing": 1.0, "disagreeing": 1.0})
    settings = SECTION.model_copy(update={"advantage": "gae", "entropy_coef": 0.1})
    assert not first_gradient(tmp_path / "all", settings, critics=everything, tokenizer=TOKENIZER).any()
    no_bonus = ASYPPO.model_copy(update={"agreeing": 0.0, "disagreeing": 1.0})
    without = settings.model_copy(update={"entropy_coef": 0.0})
    nothing = ASYPPO.model_copy(update={"agreeing": 0.0, "disagreeing": 0.0})
    torch.testing.assert_close(
        first_gradient(tmp_path / "no bonus", settings, critics=no_bonus, tokenizer=TOKENIZER),
        first_gradient(tmp_path / "without", without, critics=nothing, tokenizer=TOKENIZER),
    )


def test_masks_serve_advantages_of_the_group_too(tmp_path: Path) -> None:
    learner(tmp_path, Recording(), THOROUGH, critics=ASYPPO, tokenizer=TOKENIZER).learn()
    row = rows(tmp_path)[-1]
    assert 0.1 < row["critics/advantage_masked_share"] <= 0.2
    assert 0.1 < row["critics/entropy_masked_share"] <= 0.2
    assert row["critics/sigma_p95"] > row["critics/sigma_p50"] > 0
    assert "critics/explained_variance" in row


@pytest.mark.parametrize("section", [ASYPPO, SYMMETRIC, ASYPPO.model_copy(update={"update": "after"})])
@pytest.mark.parametrize("steps_before_the_stop", [3, 4])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_by_bit(
    tmp_path: Path, section: CriticsSection, steps_before_the_stop: int
) -> None:
    whole = learner(tmp_path / "whole", Recording(), GAE, critics=section, tokenizer=TOKENIZER)
    whole.learn()
    stopped = learner(tmp_path / "cut", Recording(), GAE, critics=section, tokenizer=TOKENIZER)
    stop_at_step(stopped, steps_before_the_stop)
    assert not stopped.learn()
    resumed = learner(tmp_path / "cut", Recording(), GAE, critics=section, tokenizer=TOKENIZER)
    assert resumed.learn(resume=True)
    assert same(whole._policy.state_dict(), resumed._policy.state_dict())
    assert whole._critics is not None
    assert resumed._critics is not None
    for ours, theirs in zip(whole._critics._critics, resumed._critics._critics, strict=True):
        assert same(ours.model.state_dict(), theirs.model.state_dict())
    names = [name for name in rows(tmp_path / "whole")[-1] if name.startswith("critics/")]
    assert [[row[name] for name in names] for row in rows(tmp_path / "whole")] == [
        [row[name] for name in names] for row in rows(tmp_path / "cut")
    ]


def test_a_run_cannot_begin_to_have_critics_in_the_middle_or_change_them(tmp_path: Path) -> None:
    short = SECTION.model_copy(update={"iterations": 2})
    learner(tmp_path / "none", Recording(), short, tokenizer=TOKENIZER).learn()
    with pytest.raises(CheckpointError, match=r"critics\.pt is missing: this run began with"):
        learner(tmp_path / "none", Recording(), SECTION, critics=ASYPPO, tokenizer=TOKENIZER).learn(resume=True)
    learner(tmp_path / "two", Recording(), short, critics=ASYPPO, tokenizer=TOKENIZER).learn()
    other = ASYPPO.model_copy(update={"count": 3})
    with pytest.raises(CheckpointError, match="of other critics than the recipe asks for now"):
        learner(tmp_path / "two", Recording(), SECTION, critics=other, tokenizer=TOKENIZER).learn(resume=True)


def test_a_critic_can_be_a_saved_model_of_the_policy_s_vocabulary(tmp_path: Path) -> None:
    save_policy(played.tiny_qwen3(seed=4), TOKENIZER, tmp_path / "critic")
    subject = critics(ASYPPO.model_copy(update={"model": str(tmp_path / "critic")}))
    backbones = [critic.model.backbone.state_dict() for critic in subject._critics]
    assert same(*backbones)
    assert not torch.equal(*(critic.model.head.weight for critic in subject._critics))
    with pytest.raises(PolicyError, match=r"knows 23 tokens and the policy 24.*`critics\.model`"):
        load_backbone(str(tmp_path / "critic"), 24)
    with pytest.raises(PolicyError, match=r"There is no folder .*Set `critics\.model`"):
        load_backbone(str(tmp_path / "nowhere"), 24)


@pytest.mark.parametrize("section", [ASYPPO, SYMMETRIC], ids=["asyppo", "symmetric"])
def test_a_critic_whose_gradient_is_no_number_stops_the_run_before_it_reaches_the_policy(
    tmp_path: Path, section: CriticsSection
) -> None:
    subject = learner(tmp_path, Recording(), GAE, critics=section, tokenizer=TOKENIZER)
    before = {name: tensor.clone() for name, tensor in subject._policy.state_dict().items()}
    assert subject._critics is not None
    with torch.no_grad():
        subject._critics._critics[-1].model.head.weight.fill_(float("inf"))
    with pytest.raises(LearnerDiverged, match=r"lower `critics\.learning_rate`"):
        subject.learn()
    assert same(before, subject._policy.state_dict())


def test_a_trajectory_without_action_tokens_has_no_values() -> None:
    subject = critics()
    groups = played.groups(0)
    bare = played.trajectory(np.random.default_rng(0), "bare", turns=0, outcome=Outcome.TRUNCATED)
    judged = subject.judge([Group("g", "t", (bare, *groups[0].trajectories))], 0)
    assert len(judged.values[0]) == 0
    assert len(list(plan([bare], 64))) == 0
