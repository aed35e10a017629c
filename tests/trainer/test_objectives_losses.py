"""Policy losses against loops in float64 written from the formulas, and gradients against finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from rocknroll.trainer.objectives.diagnostics import ratio_metrics
from rocknroll.trainer.objectives.losses import LOG_RATIO_LIMIT, POLICY_LOSSES, USES_PROXIMAL, k3_kl, regularised

CFG = SimpleNamespace(clip_low=0.2, clip_high=0.28, ratio_cap=1.5)
NAMES = sorted(POLICY_LOSSES)


def slow_ppo(logp: float, behaviour: float, proximal: float, advantage: float) -> float:
    u = math.exp(logp - proximal)
    clipped = min(max(u, 1 - CFG.clip_low), 1 + CFG.clip_high)
    return -min(u * advantage, clipped * advantage)


def slow_decoupled_ppo(logp: float, behaviour: float, proximal: float, advantage: float) -> float:
    w = math.exp(proximal - behaviour)
    return min(w, CFG.ratio_cap) * slow_ppo(logp, behaviour, proximal, advantage)


def slow_reinforce(logp: float, behaviour: float, proximal: float, advantage: float) -> float:
    return -advantage * logp


SLOW: dict[str, Callable[[float, float, float, float], float]] = {
    "ppo": slow_ppo,
    "grpo": slow_ppo,
    "decoupled_ppo": slow_decoupled_ppo,
    "reinforce": slow_reinforce,
}


def inputs(seed: int = 0, shape: tuple[int, int] = (5, 7)) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Ragged rows (one full, one empty), ratios inside and outside every clip, advantages of both signs and 0."""
    rng = np.random.default_rng(seed)
    lengths = [shape[1], 0, *rng.integers(1, shape[1], shape[0] - 2)]
    mask = np.arange(shape[1])[None, :] < np.array(lengths)[:, None]
    behaviour = -rng.uniform(0.1, 3.0, shape)
    proximal = behaviour + rng.normal(0, 0.5, shape)
    logp = proximal + rng.normal(0, 0.4, shape)
    advantage = rng.normal(0, 1, shape) * (rng.uniform(size=shape) > 0.1)
    values = [torch.from_numpy(x) for x in (logp, behaviour, proximal, advantage, mask)]
    return values[0], values[1], values[2], values[3], values[4]


@pytest.mark.parametrize("name", NAMES)
def test_loss_equals_the_formula_token_by_token(name: str) -> None:
    logp, behaviour, proximal, advantage, mask = inputs()
    loss, _ = POLICY_LOSSES[name](logp, behaviour, proximal, advantage, mask, CFG)
    for place in np.argwhere(mask.numpy()):
        i, j = (int(x) for x in place)
        expected = SLOW[name](*(float(x[i, j]) for x in (logp, behaviour, proximal, advantage)))
        assert float(loss[i, j]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_equals_finite_differences_of_the_formula(name: str) -> None:
    logp, behaviour, proximal, advantage, mask = inputs(1)
    logp.requires_grad_()
    loss, _ = POLICY_LOSSES[name](logp, behaviour, proximal, advantage, mask, CFG)
    regularised(loss, mask, entropy=logp, entropy_coef=0.0, kl=None, kl_coef=0.0).sum().backward()  # type: ignore[no-untyped-call]
    assert logp.grad is not None
    step = 1e-6
    for place in np.argwhere(mask.numpy()):
        i, j = (int(x) for x in place)
        rest = tuple(float(x[i, j]) for x in (behaviour, proximal, advantage))
        at = float(logp[i, j].detach())
        slope = (SLOW[name](at + step, *rest) - SLOW[name](at - step, *rest)) / (2 * step)
        assert float(logp.grad[i, j]) == pytest.approx(slope, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_what_the_mask_hides_reaches_neither_value_nor_gradient(name: str) -> None:
    logp, behaviour, proximal, advantage, mask = inputs(2)
    hidden = [torch.where(mask, x, math.nan) for x in (logp, behaviour, proximal, advantage)]
    hidden[0].requires_grad_()
    loss, stats = POLICY_LOSSES[name](hidden[0], hidden[1], hidden[2], hidden[3], mask, CFG)
    kl = k3_kl(hidden[0], hidden[1], mask)
    loss = regularised(loss, mask, entropy=hidden[0], entropy_coef=0.3, kl=kl, kl_coef=0.2)
    assert (loss[~mask] == 0).all()
    assert not any(stat[~mask].any() for stat in stats.values())
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert hidden[0].grad is not None
    assert torch.isfinite(hidden[0].grad).all()
    assert (hidden[0].grad[~mask] == 0).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("gap", [-1e4, -50.0, 50.0, 1e4])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_extreme_ratios_stay_finite(name: str, gap: float, sign: float) -> None:
    logp = torch.tensor([[gap]], requires_grad=True)
    zero, mask = torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool)
    loss, _ = POLICY_LOSSES[name](logp, zero - gap, zero, zero + sign, mask, CFG)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert torch.isfinite(loss).all()
    assert logp.grad is not None
    assert torch.isfinite(logp.grad).all()


def test_a_ratio_beyond_the_limit_is_the_limit_and_has_no_gradient() -> None:
    logp = torch.tensor([[LOG_RATIO_LIMIT + 1]], dtype=torch.float64, requires_grad=True)
    zero, mask = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.bool)
    loss, _ = POLICY_LOSSES["ppo"](logp, zero, zero, zero - 1, mask, CFG)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == pytest.approx(math.exp(20))
    assert logp.grad is not None
    assert float(logp.grad) == 0


def test_the_behaviour_ratio_carries_no_gradient() -> None:
    logp, behaviour, proximal, advantage, mask = inputs(3)
    proximal.requires_grad_()
    w_only, _ = POLICY_LOSSES["decoupled_ppo"](logp, behaviour, proximal, advantage, mask, CFG)
    u_only, _ = POLICY_LOSSES["ppo"](logp, behaviour, proximal, advantage, mask, CFG)
    w = (proximal - behaviour).exp().clamp(max=CFG.ratio_cap).detach()
    (decoupled,) = torch.autograd.grad(w_only[mask].sum(), proximal)
    (plain,) = torch.autograd.grad((w * u_only)[mask].sum(), proximal)
    torch.testing.assert_close(decoupled, plain)


def test_stats_say_which_tokens_were_clipped_and_capped() -> None:
    logp = torch.tensor([[-0.5, 0.5, -0.5, 0.5]])
    advantage = torch.tensor([[-1.0, 1.0, 1.0, -1.0]])
    zero, mask = torch.zeros(1, 4), torch.ones(1, 4, dtype=torch.bool)
    _, stats = POLICY_LOSSES["decoupled_ppo"](logp, zero - 1, zero, advantage, mask, CFG)
    assert stats["clip_low_fraction"].tolist() == [[True, False, False, False]]
    assert stats["clip_high_fraction"].tolist() == [[False, True, False, False]]
    assert stats["ratio_cap_fraction"].all()


def test_only_objectives_that_read_the_proximal_policy_are_said_to() -> None:
    logp, behaviour, proximal, advantage, mask = inputs(4)
    for name in NAMES:
        one, _ = POLICY_LOSSES[name](logp, behaviour, proximal, advantage, mask, CFG)
        other, _ = POLICY_LOSSES[name](logp, behaviour, proximal + 0.3, advantage, mask, CFG)
        assert torch.equal(one, other) is (name not in USES_PROXIMAL)


def test_k3_is_the_estimator_of_schulman() -> None:
    logp, reference, _, _, mask = inputs(5)
    kl = k3_kl(logp, reference, mask)
    for place in np.argwhere(mask.numpy()):
        i, j = (int(x) for x in place)
        log_rho = float(reference[i, j] - logp[i, j])
        assert float(kl[i, j]) == pytest.approx(math.exp(log_rho) - log_rho - 1, rel=1e-12)
    assert (kl >= 0).all()


def test_k3_averages_to_the_true_divergence() -> None:
    """Over all tokens weighed by π_θ, k3 is KL(π_θ ‖ π_ref) exactly."""
    rng = np.random.default_rng(0)
    p, q = (torch.log_softmax(torch.from_numpy(rng.normal(size=(1, 9))), -1) for _ in range(2))
    expected = (p.exp() * (p - q)).sum()
    estimate = (p.exp() * k3_kl(p, q, torch.ones(1, 9, dtype=torch.bool))).sum()
    assert float(estimate) == pytest.approx(float(expected), rel=1e-12)


def test_regularisers_enter_with_their_coefficients_and_signs() -> None:
    one, mask = torch.ones(1, 2), torch.tensor([[True, False]])
    total = regularised(one, mask, entropy=one * 5, entropy_coef=0.1, kl=one * 7, kl_coef=0.01)
    assert total.tolist() == [[pytest.approx(1 - 0.5 + 0.07), 0]]


def test_ratio_metrics_equal_their_definitions() -> None:
    rng = np.random.default_rng(1)
    logp, behaviour, proximal = (-rng.uniform(0.1, 3, 50) for _ in range(3))
    metrics = ratio_metrics(logp, behaviour, proximal)
    r = [math.exp(a - b) for a, b in zip(logp, behaviour, strict=True)]
    w = [math.exp(a - b) for a, b in zip(proximal, behaviour, strict=True)]
    assert metrics["ratio/r_mean"] == pytest.approx(sum(r) / 50)
    assert metrics["ratio/w_mean"] == pytest.approx(sum(w) / 50)
    assert (metrics["ratio/r_max"], metrics["ratio/w_max"]) == (pytest.approx(max(r)), pytest.approx(max(w)))
    assert metrics["ratio/ess"] == pytest.approx(sum(r) ** 2 / (50 * sum(x * x for x in r)))
    assert metrics["ratio/kl_behaviour"] == pytest.approx(sum(x - math.log(x) - 1 for x in r) / 50)


def test_on_policy_data_has_full_sample_size_and_no_divergence() -> None:
    logp = -np.random.default_rng(2).uniform(0.1, 3, 20)
    metrics = ratio_metrics(logp, logp, logp)
    assert metrics["ratio/ess"] == metrics["ratio/w_max"] == metrics["ratio/r_mean"] == pytest.approx(1)
    assert metrics["ratio/kl_behaviour"] == metrics["ratio/kl_proximal"] == 0
