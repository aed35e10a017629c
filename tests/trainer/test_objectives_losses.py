"""Policy losses, values and gradients, against the reference written from the formulas (`objectives_reference`)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import numpy as np
import objectives_reference as reference
import pytest
import torch
from objectives_reference import Row, Settings
from torch import Tensor

from rocknroll.trainer.learner_section import LearnerSection
from rocknroll.trainer.objectives.catalogue import OBJECTIVES, USES_PROXIMAL, WHOLE_BATCH_ADVANTAGES
from rocknroll.trainer.objectives.losses import POLICY_LOSSES, Stats
from rocknroll.trainer.objectives.ratios import LOG_RATIO_LIMIT, LossInput

NAMES = sorted(POLICY_LOSSES)
CASES = [
    (name, level, dual_clip)
    for name in NAMES
    for level in ("token", "sequence", "segment")
    if level not in OBJECTIVES[name].refused_levels
    for dual_clip in ((None, 1.7) if OBJECTIVES[name].clips_proximal else (None,))
]
ONE_TOKEN = torch.ones(1, 1, dtype=torch.bool)


def rows(seed: int = 0, width: int = 9) -> list[Row]:
    """Ragged rows: a full one, an empty one, runs of 1 to 3 tokens, both signs of return, and ties: advantages of 0,
    ratios of exactly 1, a row in which nothing moved."""
    rng = np.random.default_rng(seed)
    made = []
    for index, length in enumerate([width, 0, 1, *rng.integers(2, width, 5)]):
        behaviour = -rng.uniform(0.1, 3.0, length)
        moved = 0.0 if index == 4 else 1.0
        proximal = behaviour + moved * rng.normal(0, 0.5, length) * (rng.uniform(size=length) > 0.1)
        logp = proximal + moved * rng.normal(0, 0.5, length) * (rng.uniform(size=length) > 0.2)
        advantage = rng.normal(0, 1, length) * (rng.uniform(size=length) > 0.1)
        segment = np.cumsum(rng.uniform(size=length) > 0.5)
        values = [x.tolist() for x in (logp, behaviour, proximal, advantage, segment)]
        made.append(Row(*values, ret=[1.0, -1.0, 0.0][index % 3]))
    return made


def given(played: list[Row], fill: float = 0.0) -> LossInput:
    """The rows as tensors, padded with `fill`."""
    width = max(len(row.logp) for row in played)

    def matrix(name: str) -> Tensor:
        padded = [getattr(row, name) + [fill] * (width - len(row.logp)) for row in played]
        return torch.tensor(padded, dtype=torch.float64)

    mask = torch.tensor([[t < len(row.logp) for t in range(width)] for row in played])
    return LossInput(
        logp=matrix("logp").requires_grad_(),
        behaviour=matrix("behaviour"),
        proximal=matrix("proximal"),
        advantage=matrix("advantage"),
        mask=mask,
        segment=torch.where(mask, matrix("segment"), 0.0).long(),
        returns=torch.tensor([row.ret for row in played], dtype=torch.float64),
    )


def outcome(name: str, played: list[Row], settings: Settings) -> tuple[Tensor, Tensor, Stats]:
    """Loss and gradient of our objective."""
    inputs = given(played)
    loss, stats = POLICY_LOSSES[name](inputs, settings)  # type: ignore[arg-type]
    (gradient,) = torch.autograd.grad(loss.sum(), inputs.logp)
    return loss.detach(), gradient, stats


def assert_equals_reference(name: str, played: list[Row], settings: Settings) -> None:
    loss, gradient, _ = outcome(name, played, settings)
    for i, row in enumerate(played):
        for t in range(len(row.logp)):
            value, slope = reference.OBJECTIVES[name](row, t, settings)
            assert float(loss[i, t]) == pytest.approx(-value, rel=1e-11, abs=1e-13)
            assert float(gradient[i, t]) == pytest.approx(-slope, rel=1e-11, abs=1e-13)


def one(logp: float, behaviour: float, proximal: float, advantage: float, ret: float = 1.0) -> Row:
    return Row([logp], [behaviour], [proximal], [advantage], [0], ret)


@pytest.mark.parametrize(("name", "level", "dual_clip"), CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_values_and_gradients_equal_the_reference(name: str, level: str, dual_clip: float | None, seed: int) -> None:
    assert_equals_reference(name, rows(seed), Settings(ratio_level=level, dual_clip=dual_clip))


@pytest.mark.parametrize(("name", "level", "dual_clip"), CASES)
@pytest.mark.parametrize("gap", [-1e3, -25.0, 25.0, 1e3])
def test_extreme_log_ratios_are_limited_as_in_the_reference(
    name: str, level: str, dual_clip: float | None, gap: float
) -> None:
    """One token of each row is far out: the trained policy against the others, or all against the behaviour."""
    for shift in ({"logp"}, {"logp", "proximal"}):
        played = [
            replace(
                row, **{field: [x + gap if t == 0 else x for t, x in enumerate(getattr(row, field))] for field in shift}
            )
            for row in rows(2)
        ]
        assert_equals_reference(name, played, Settings(ratio_level=level, dual_clip=dual_clip))


@pytest.mark.parametrize(("name", "dual_clip"), [(name, clip) for name, level, clip in CASES if level == "token"])
def test_slopes_of_the_reference_are_those_of_its_values(name: str, dual_clip: float | None) -> None:
    """At token level, where nothing else is held constant: finite differences for a clipped surrogate, and
    `sg(weight)·log π` for the others."""
    settings, step = Settings(dual_clip=dual_clip), 1e-6
    for row in rows(3):
        for t in range(len(row.logp)):
            value, slope = reference.OBJECTIVES[name](row, t, settings)
            if name in USES_PROXIMAL:
                moved = [replace(row, logp=[x + d * (k == t) for k, x in enumerate(row.logp)]) for d in (step, -step)]
                up, down = (reference.OBJECTIVES[name](m, t, settings)[0] for m in moved)
                assert (up - down) / (2 * step) == pytest.approx(slope, rel=1e-5, abs=1e-7)
            else:
                assert value == pytest.approx(slope * row.logp[t])


@pytest.mark.parametrize("level", ["sequence", "segment"])
def test_with_one_advantage_per_sequence_the_token_form_is_gspo(level: str) -> None:
    """Gradient of `min(s·A, clip(s)·A)` averaged over sequences, s with its gradient (GSPO, eq. 5 and 7)."""
    settings = Settings(ratio_level=level, clip_low=0.1, clip_high=0.15)
    played = [replace(row, advantage=[row.ret - 0.5] * len(row.logp)) for row in rows(4) if row.logp]
    inputs = given(played)
    loss, _ = POLICY_LOSSES["gspo"](inputs, settings)  # type: ignore[arg-type]
    ours = sum((loss[i, : len(row.logp)].mean() for i, row in enumerate(played)), start=torch.zeros(()))
    theirs = torch.zeros((), dtype=torch.float64)
    other = given(played)
    for i, row in enumerate(played):
        for segment in sorted(set(row.segment)) if level == "segment" else [None]:
            tokens = [t for t in range(len(row.logp)) if segment is None or row.segment[t] == segment]
            s = (other.logp[i, tokens] - other.proximal[i, tokens]).mean().exp()
            surrogate = torch.minimum(s * row.advantage[0], s.clamp(0.9, 1.15) * row.advantage[0])
            theirs = theirs - surrogate * len(tokens) / len(row.logp)
    torch.testing.assert_close(ours, theirs)
    (ours_gradient,) = torch.autograd.grad(ours, inputs.logp)
    (their_gradient,) = torch.autograd.grad(theirs, other.logp)
    torch.testing.assert_close(ours_gradient, their_gradient)


@pytest.mark.parametrize(("name", "level", "dual_clip"), CASES)
def test_what_the_mask_hides_reaches_neither_value_nor_gradient(name: str, level: str, dual_clip: float | None) -> None:
    settings = Settings(ratio_level=level, dual_clip=dual_clip)
    hidden, plain = given(rows(), fill=math.nan), given(rows())
    hidden = replace(hidden, segment=hidden.segment.masked_fill(~hidden.mask, 10**6))
    loss, stats = POLICY_LOSSES[name](hidden, settings)  # type: ignore[arg-type]
    expected, _ = POLICY_LOSSES[name](plain, settings)  # type: ignore[arg-type]
    assert torch.equal(loss[hidden.mask], expected[hidden.mask])
    fractions = [stat for stat_name, stat in stats.items() if stat_name.endswith("_fraction")]
    assert not any(stat[~hidden.mask].any() for stat in fractions)
    assert (stats["staleness_weight"][~hidden.mask] == 1).all()
    (gradient,) = torch.autograd.grad(loss[hidden.mask].sum(), hidden.logp)
    assert torch.isfinite(gradient).all()
    assert (gradient[~hidden.mask] == 0).all()


@pytest.mark.parametrize(("name", "level", "dual_clip"), CASES)
def test_rows_that_are_masked_whole_give_nothing(name: str, level: str, dual_clip: float | None) -> None:
    inputs = replace(given(rows()), mask=torch.zeros(8, 9, dtype=torch.bool))
    loss, _ = POLICY_LOSSES[name](inputs, Settings(ratio_level=level, dual_clip=dual_clip))  # type: ignore[arg-type]
    assert not loss.any()


@pytest.mark.parametrize(("name", "level", "dual_clip"), CASES)
def test_a_row_without_tokens_beside_a_row_of_one_changes_nothing(
    name: str, level: str, dual_clip: float | None
) -> None:
    settings = Settings(ratio_level=level, dual_clip=dual_clip)
    assert_equals_reference(name, [one(-1, -2, -1.5, 1.0), Row([], [], [], [], [], 1.0)], settings)


def test_a_ratio_beyond_the_limit_is_the_limit_and_has_no_gradient() -> None:
    loss, gradient, _ = outcome("ppo", [one(LOG_RATIO_LIMIT + 1, 0, 0, -1)], Settings())
    assert float(loss) == pytest.approx(math.exp(20))
    assert float(gradient) == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_ratio_to_the_behaviour_policy_carries_no_gradient(name: str) -> None:
    inputs = given(rows(3))
    inputs.behaviour.requires_grad_()
    loss, _ = POLICY_LOSSES[name](inputs, Settings())  # type: ignore[arg-type]
    (gradient,) = torch.autograd.grad(loss.sum(), inputs.behaviour, allow_unused=True)
    assert gradient is None or not gradient.any()


def test_a_token_at_the_edge_of_a_clip_is_not_counted_as_clipped() -> None:
    settings = Settings(clip_low=0.5, clip_high=1.0, dual_clip=2.0, ratio_cap=2.0)
    log2 = math.log(2.0)
    edge = [one(log2, 0, 0, 1.0), one(-log2, 0, 0, -1.0), one(log2, 0, 0, -1.0), one(log2, 0, log2, 1.0)]
    for name in NAMES:
        _, _, stats = outcome(name, edge, settings)
        assert not any(stat.any() for stat_name, stat in stats.items() if stat_name.endswith("_fraction")), name


def test_stats_say_which_tokens_were_clipped_capped_and_bounded() -> None:
    tokens = [one(-0.5, -1, 0, -0.5), one(0.5, -1, 0, 0.5), one(-0.5, -1, 0, 0.5), one(1.5, -1, 0, -0.5)]
    _, _, stats = outcome("decoupled_ppo", tokens, Settings(dual_clip=3.0))
    assert stats["clip_low_fraction"][:, 0].tolist() == [True, False, False, False]
    assert stats["clip_high_fraction"][:, 0].tolist() == [False, True, False, False]
    assert stats["dual_clip_fraction"][:, 0].tolist() == [False, False, False, True]
    assert stats["ratio_cap_fraction"].all()
    assert stats["staleness_weight"][:, 0].tolist() == [1.5] * 4


def test_cispo_says_which_bound_acted() -> None:
    _, _, stats = outcome("cispo", [one(-1, 0, 0, 1.0), one(1, 0, 0, -1.0), one(0, 0, 0, 1.0)], Settings())
    assert stats["ratio_floor_fraction"][:, 0].tolist() == [True, False, False]
    assert stats["ratio_cap_fraction"][:, 0].tolist() == [False, True, False]
    assert stats["staleness_weight"][:, 0].tolist() == pytest.approx([0.8, 1.28, 1.0])


def test_topr_tapers_trajectories_without_a_positive_return_whatever_their_advantage() -> None:
    tokens = [one(-1, 0, 0, a, ret) for ret in (1.0, 0.0, -1.0) for a in (1.0, -1.0)]
    _, _, stats = outcome("topr", tokens, Settings())
    tapered = math.exp(-1)
    assert stats["staleness_weight"][:, 0].tolist() == pytest.approx([1, 1, tapered, tapered, tapered, tapered])


def test_ppo_weighs_nothing_for_staleness() -> None:
    for name in USES_PROXIMAL - {"decoupled_ppo"} | {"reinforce"}:
        _, _, stats = outcome(name, rows(), Settings(ratio_level="token"))
        assert (stats["staleness_weight"] == 1).all()


def test_only_objectives_that_read_the_proximal_policy_are_said_to() -> None:
    for name in NAMES:
        inputs = given(rows(4))
        one_loss, _ = POLICY_LOSSES[name](inputs, Settings())  # type: ignore[arg-type]
        moved = replace(inputs, proximal=inputs.proximal + 0.3)
        other, _ = POLICY_LOSSES[name](moved, Settings())  # type: ignore[arg-type]
        assert torch.equal(one_loss, other) is (name not in USES_PROXIMAL)


def test_the_recipe_the_catalogue_and_the_registry_know_the_same_objectives() -> None:
    literal = get_args(LearnerSection.model_fields["objective"].annotation)
    assert set(literal) == set(OBJECTIVES) == set(POLICY_LOSSES) == set(reference.OBJECTIVES)
    assert set(get_args(LearnerSection.model_fields["advantage"].annotation)) > WHOLE_BATCH_ADVANTAGES


@pytest.mark.parametrize(
    ("objective", "companions"),
    [
        ("dapo", {"clip_low": 0.2, "clip_high": 0.28, "aggregation": "token_mean"}),
        ("dr_grpo", {"advantage": "dr_grpo", "aggregation": "sequence_sum"}),
        (
            "gspo",
            {"ratio_level": "sequence", "clip_low": 3e-4, "clip_high": 4e-4, "aggregation": "sequence_mean"},
        ),
        ("tis", {"ratio_cap": 1.0}),
        ("cispo", {"clip_low": 1.0}),
        ("topr", {"ratio_level": "sequence", "ratio_cap": 1.0}),
        ("decoupled_ppo", {}),
        ("ppo", {}),
        ("grpo", {}),
        ("reinforce", {}),
    ],
)
def test_an_objective_brings_its_settings_and_a_recipe_overrules_them(
    objective: str, companions: dict[str, object]
) -> None:
    plain = LearnerSection().model_dump()
    resolved = LearnerSection.model_validate({"objective": objective}).model_dump()
    assert resolved == plain | {"objective": objective} | companions
    said = {"objective": objective, "clip_high": 0.7, "ratio_cap": 9.0, "aggregation": "token_mean"}
    overruled = LearnerSection.model_validate(said).model_dump()
    assert overruled == plain | {"objective": objective} | companions | said
    assert LearnerSection.model_validate(resolved).model_dump() == resolved
