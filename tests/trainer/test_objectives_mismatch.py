"""The weight that corrects the engine's mismatch, against the definition."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from test_objectives_losses import given, rows
from torch import Tensor

from rocknroll.trainer.objectives.mismatch import mismatch_weight
from rocknroll.trainer.objectives.ratios import LossInput


def weights(engine: Tensor, inputs: LossInput, **settings: object) -> tuple[Tensor, Tensor]:
    cfg = SimpleNamespace(**({"mode": "token", "cap": 1.4, "floor": 0.7, "exceed": "clip"} | settings))
    return mismatch_weight(inputs, engine, cfg)  # type: ignore[arg-type]


def inputs_and_engine() -> tuple[LossInput, Tensor]:
    """μ_train as the behaviour, and what the engine recorded, NaN where the mask is false."""
    inputs = given(rows(), fill=math.nan)
    return inputs, inputs.behaviour - inputs.proximal + inputs.logp.detach()


@pytest.mark.parametrize("mode", ["token", "sequence"])
@pytest.mark.parametrize("exceed", ["clip", "mask"])
def test_the_weight_is_the_bounded_ratio_of_trainer_to_engine(mode: str, exceed: str) -> None:
    inputs, engine = inputs_and_engine()
    ours, outside = weights(engine, inputs, mode=mode, exceed=exceed)
    seen = set()
    for i in range(len(ours)):
        tokens = [t for t in range(ours.shape[1]) if inputs.mask[i, t]]
        for t in tokens:
            together = tokens if mode == "sequence" else [t]
            m = math.exp(sum(float(inputs.behaviour[i, k] - engine[i, k]) for k in together))
            beyond = not 0.7 <= m <= 1.4
            bounded = min(max(m, 0.7), 1.4) if exceed == "clip" else 0.0 if beyond else m
            assert float(ours[i, t]) == pytest.approx(bounded, rel=1e-12)
            assert bool(outside[i, t]) is beyond
            seen.add(beyond)
    assert seen == {True, False}
    assert not outside[~inputs.mask].any()
    assert (ours[~inputs.mask] == 1).all()


def test_off_weighs_nothing() -> None:
    inputs, engine = inputs_and_engine()
    ours, outside = weights(engine, inputs, mode="off")
    assert (ours == 1).all()
    assert not outside.any()


def test_the_weight_carries_no_gradient() -> None:
    inputs, engine = inputs_and_engine()
    ours, _ = weights(engine, LossInput(**vars(inputs) | {"behaviour": inputs.logp}))
    assert not ours.requires_grad


@pytest.mark.parametrize("gap", [-1e3, 1e3])
def test_extreme_mismatch_is_bounded(gap: float) -> None:
    inputs, _ = inputs_and_engine()
    ours, _ = weights(inputs.behaviour + gap, inputs, cap=1e12, floor=0.0)
    assert ours[inputs.mask].tolist() == pytest.approx([math.exp(math.copysign(20, -gap))] * int(inputs.mask.sum()))
