"""Which tokens each scheme amplifies, against slow references written from the paper's definitions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rocknroll.trainer.credit.rhythm import ATTENTIVE, SCHEMES, Signals, couple, top

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Settings:
    amplification: float = 1.5
    uniform: float = 1.2
    share: float = 0.4
    lookback: int = 3
    introduction: float = 0.5


@st.composite
def some_signals(draw: st.DrawFn) -> Signals:
    """Few different values, so that most comparisons are ties."""
    runs = draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))
    count = sum(runs)
    few = st.sampled_from([0.0, 0.5, 1.0, 2.5, 7.0])
    some = st.lists(few, min_size=count, max_size=count).map(np.array)
    fai = draw(some).astype(float)
    fai[count - draw(st.integers(0, count)) :] = np.nan
    return Signals(draw(some), fai, np.repeat(np.arange(len(runs)), runs), draw(some))


def slow_top(values: list[float | None], share: float) -> set[int]:
    """By picking the best one as often as asked, the first of equals."""
    left = {index: value for index, value in enumerate(values) if value is not None}
    wanted = math.ceil(round(share * len(left), 9))
    chosen: set[int] = set()
    while len(chosen) < wanted:
        best = max(left.values())
        index = min(i for i, value in left.items() if value == best)
        chosen.add(index)
        del left[index]
    return chosen


def known(values: Array) -> list[float | None]:
    return [None if math.isnan(value) else float(value) for value in values]


def slow_jumps(signals: Signals) -> list[float | None]:
    count = len(signals.waad)
    return [
        abs(float(signals.waad[t]) - float(signals.waad[t + 1]))
        if t + 1 < count and signals.segment[t] == signals.segment[t + 1]
        else None
        for t in range(count)
    ]


def median(values: list[float]) -> float:
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def slow_coupled(signals: Signals, cfg: Settings) -> list[float]:
    jumps = slow_jumps(signals)
    anchors = slow_top(known(signals.fai), cfg.share)
    introduced: dict[int, int] = {}
    if any(jump is not None for jump in jumps):
        tau_jump = median([jump for jump in jumps if jump is not None])
        tau_waad = median([float(value) for value in signals.waad])
        for t in sorted(anchors):
            window = [u for u in range(t - cfg.lookback, t) if u >= 0 and signals.segment[u] == signals.segment[t]]
            if not window or signals.waad[t] > tau_waad:
                continue
            highest = max(jumps[u] or 0.0 for u in window)
            if highest >= tau_jump:
                introduced[t] = min(u for u in window if (jumps[u] or 0.0) == highest)
    gamma = []
    for t in range(len(signals.waad)):
        extra = 0.0
        if t in anchors:
            extra += 1 - cfg.introduction if t in introduced else 1.0
        if t in introduced.values():
            extra += cfg.introduction
        gamma.append(1 + (cfg.amplification - 1) * extra)
    return gamma


def gammas(scheme: str, signals: Signals, cfg: Settings, seed: int = 0) -> Array:
    return SCHEMES[scheme](signals, cfg, np.random.default_rng(seed))


@given(some_signals(), st.sampled_from([0.0, 0.1, 0.4, 0.5, 1.0]), st.integers(1, 8))
def test_schemes_equal_their_slow_references(signals: Signals, share: float, lookback: int) -> None:
    cfg = Settings(share=share, lookback=lookback)
    expected = {
        "local": slow_top(slow_jumps(signals), share),
        "global": slow_top(known(signals.fai), share),
        "entropy": slow_top(known(signals.entropy), share),
    }
    for scheme, chosen in expected.items():
        wanted = [1.5 if t in chosen else 1.0 for t in range(len(signals.waad))]
        np.testing.assert_array_equal(gammas(scheme, signals, cfg), wanted, err_msg=scheme)
    np.testing.assert_allclose(gammas("coupled", signals, cfg), slow_coupled(signals, cfg), rtol=1e-15)


@given(some_signals(), st.sampled_from(sorted(SCHEMES)), st.integers(0, 3))
def test_no_scheme_takes_credit_away(signals: Signals, scheme: str, seed: int) -> None:
    gamma = gammas(scheme, signals, Settings(), seed)
    assert gamma.shape == signals.waad.shape
    assert (gamma >= 1).all()


@pytest.mark.parametrize(("share", "of", "chosen"), [(0.4, 5, 2), (0.4, 10, 4), (0.1, 30, 3), (0.4, 6, 3), (0.4, 1, 1)])
def test_share_is_rounded_up_from_what_was_meant(share: float, of: int, chosen: int) -> None:
    assert top(np.zeros(of), share).sum() == chosen
    assert top(np.zeros(of), share)[:chosen].all()


@given(st.integers(0, 40), st.integers(0, 3))
def test_random_amplifies_as_many_wherever(count: int, seed: int) -> None:
    signals = Signals(np.zeros(count), np.zeros(count), np.zeros(count, dtype=np.int64), np.zeros(count))
    gamma = gammas("random", signals, Settings(), seed)
    assert (gamma > 1).sum() == math.ceil(0.4 * count - 1e-9)
    np.testing.assert_array_equal(gamma, gammas("random", signals, Settings(), seed))


def test_random_depends_on_the_seed() -> None:
    signals = Signals(np.zeros(30), np.zeros(30), np.zeros(30, dtype=np.int64), np.zeros(30))
    assert len({tuple(gammas("random", signals, Settings(), seed)) for seed in range(5)}) == 5


def test_uniform_is_a_larger_step() -> None:
    signals = Signals(np.arange(4.0), np.arange(4.0), np.zeros(4, dtype=np.int64), np.zeros(4))
    np.testing.assert_array_equal(gammas("uniform", signals, Settings()), [1.2] * 4)


def test_an_introduced_anchor_shares_its_credit_with_what_introduced_it() -> None:
    """One run: WAAD falls after token 1, and token 2, which looks near, is an anchor."""
    waad, fai = np.array([5.0, 9.0, 1.0, 1.0, 1.0, 1.0]), np.array([0.0, 0.1, 0.9, 0.2, np.nan, np.nan])
    signals = Signals(waad, fai, np.zeros(6, dtype=np.int64), np.zeros(6))
    found = couple(signals, Settings())
    assert found.anchors.tolist() == [False, False, True, True, False, False]
    assert found.introduced.tolist() == [False, False, True, True, False, False]
    assert found.introductions.tolist() == [False, True, False, False, False, False]
    np.testing.assert_array_equal(gammas("coupled", signals, Settings()), [1.0, 1.25, 1.25, 1.25, 1.0, 1.0])


def test_attentive_schemes_are_those_of_the_paper() -> None:
    assert SCHEMES.keys() > ATTENTIVE
