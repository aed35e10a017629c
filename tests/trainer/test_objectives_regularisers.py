"""KL estimators and the terms added to a loss."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from rocknroll.trainer.objectives.regularisers import KL_ESTIMATORS, kl_estimate, regularised

ALL = torch.ones(1, 9, dtype=torch.bool)


def policies(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two distributions over nine tokens, as log-probabilities [1, 9]."""
    rng = np.random.default_rng(seed)
    p, q = (torch.log_softmax(torch.from_numpy(rng.normal(size=(1, 9))), -1) for _ in range(2))
    return p.requires_grad_(), q


def slow(estimator: str, logp: float, reference: float) -> float:
    log_rho = reference - logp
    return {"k1": -log_rho, "k2": log_rho**2 / 2, "k3": math.exp(log_rho) - log_rho - 1}[estimator]


@pytest.mark.parametrize("estimator", sorted(KL_ESTIMATORS))
def test_each_estimator_is_that_of_schulman(estimator: str) -> None:
    p, q = (policy.detach() for policy in policies())
    estimates = kl_estimate(estimator, p, q, ALL)
    for ours, logp, reference in zip(estimates[0], p[0], q[0], strict=True):
        assert float(ours) == pytest.approx(slow(estimator, float(logp), float(reference)), rel=1e-12)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_average_to_the_true_divergence(estimator: str) -> None:
    """Over all tokens weighed by π_θ they are KL(π_θ ‖ π_ref) exactly."""
    p, q = (policy.detach() for policy in policies())
    expected = (p.exp() * (p - q)).sum()
    assert float((p.exp() * kl_estimate(estimator, p, q, ALL)).sum()) == pytest.approx(float(expected), rel=1e-12)


def test_the_gradient_of_k2_averages_to_that_of_the_divergence() -> None:
    """`E[∇k2] = ∇KL`, and `E[∇k1] = 0`: a loss term of k1 does not pull towards the reference."""
    logits = torch.from_numpy(np.random.default_rng(1).normal(size=(1, 9))).requires_grad_()
    _, q = policies()
    p = torch.log_softmax(logits, -1)
    (true,) = torch.autograd.grad((p.exp() * (p - q)).sum(), logits, retain_graph=True)
    for estimator, expected in (("k2", true), ("k1", torch.zeros_like(true))):
        term = (p.exp().detach() * kl_estimate(estimator, p, q, ALL)).sum()
        (ours,) = torch.autograd.grad(term, logits, retain_graph=True)
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("estimator", sorted(KL_ESTIMATORS))
@pytest.mark.parametrize("gap", [-1e4, -25.0, 25.0, 1e4])
def test_log_ratios_beyond_the_limit_count_as_the_limit(estimator: str, gap: float) -> None:
    logp = torch.full((1, 1), gap, dtype=torch.float64).requires_grad_()
    estimate = kl_estimate(estimator, logp, torch.zeros(1, 1, dtype=torch.float64), ALL[:, :1])
    assert float(estimate.detach()) == pytest.approx(slow(estimator, math.copysign(20, gap), 0.0), rel=1e-12)
    (gradient,) = torch.autograd.grad(estimate.sum(), logp)
    assert float(gradient) == 0


def test_regularisers_enter_with_their_coefficients_and_signs() -> None:
    values, mask = torch.ones(1, 2), torch.tensor([[True, False]])
    total = regularised(values, mask, entropy=values * 5, entropy_coef=0.1, kl=values * 7, kl_coef=0.01)
    assert total.tolist() == [[pytest.approx(1 - 0.5 + 0.07), 0]]


def test_what_the_mask_hides_reaches_neither_value_nor_gradient() -> None:
    hidden = torch.tensor([[-1.0, math.nan]], requires_grad=True)
    mask = torch.tensor([[True, False]])
    kl = kl_estimate("k3", hidden, hidden.detach() - 1, mask)
    loss = regularised(hidden, mask, entropy=hidden, entropy_coef=0.3, kl=kl, kl_coef=0.2)
    (gradient,) = torch.autograd.grad(loss.sum(), hidden)
    assert float(loss.detach()[0, 1]) == float(gradient[0, 1]) == 0
    assert torch.isfinite(gradient).all()
