"""Which action tokens of a trajectory get more credit, from its attention (arXiv 2510.13554, sections 3 and 4).

Each scheme gives γ [n], a factor on the advantage of every action token; what is not amplified keeps 1. The names are
the paper's: WAAD jumps where a chunk of text begins, after looking back (a *preplan* token), and FAI is high for the
tokens that the rest looks back at (*anchors*).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Chosen = NDArray[np.bool_]


class CreditConfig(Protocol):
    """The settings a scheme may read; `recipe.CreditSection` has them."""

    @property
    def amplification(self) -> float: ...
    @property
    def uniform(self) -> float: ...
    @property
    def share(self) -> float: ...
    @property
    def lookback(self) -> int: ...
    @property
    def introduction(self) -> float: ...


@dataclass(frozen=True)
class Signals:
    """What is known of the n action tokens of one trajectory; all [n]."""

    waad: Array
    fai: Array
    """NaN for a token that no query is far enough behind of."""
    segment: NDArray[np.int64]
    """The contiguous run of action tokens that each belongs to."""
    entropy: Array
    """Of the distribution that each was sampled from."""

    @property
    def jump(self) -> Array:
        """Δ_t = |WAAD_t − WAAD_{t+1}|; NaN for the last token of a run, which has no next one."""
        jumps = np.full(len(self.waad), np.nan)
        together = self.segment[:-1] == self.segment[1:]
        jumps[:-1][together] = np.abs(np.diff(self.waad))[together]
        return jumps


def top(values: Array, share: float) -> Chosen:
    """The ⌈share·m⌉ highest of the m values that are not NaN; of equal ones the earlier."""
    valid = np.flatnonzero(~np.isnan(values))
    # Rounded first: 0.4 of 5 is 2, and not 3 because of how 0.4 is stored.
    count = math.ceil(round(share * len(valid), 9))
    chosen = np.zeros(len(values), dtype=bool)
    chosen[valid[np.argsort(-values[valid], kind="stable")[:count]]] = True
    return chosen


@dataclass(frozen=True)
class Coupling:
    """How anchors follow preplan tokens; all [n]."""

    anchors: Chosen
    """T_glob."""
    introduced: Chosen
    """D: anchors that look near, shortly after a jump: what they say was decided by the token before."""
    introductions: Chosen
    """I(D): the tokens of those jumps."""
    after_jump: Chosen
    """Tokens, anchors or not, with a jump of at least τ_Δ in their window: the rate to be expected by chance."""


def couple(signals: Signals, cfg: CreditConfig) -> Coupling:
    """Find D and I(D). The window is the `lookback` tokens before, of the same run; thresholds are the medians."""
    jump, anchors = signals.jump, top(signals.fai, cfg.share)
    known = ~np.isnan(jump)
    introduced, introductions, after_jump = (np.zeros(len(jump), dtype=bool) for _ in range(3))
    if known.any():
        high, near = np.median(jump[known]), signals.waad <= np.median(signals.waad)
        for t in range(len(jump)):
            window = np.arange(max(0, t - cfg.lookback), t)
            window = window[signals.segment[window] == signals.segment[t]]
            if not len(window):
                continue
            begins = window[np.argmax(jump[window])]
            after_jump[t] = jump[begins] >= high
            if after_jump[t] and anchors[t] and near[t]:
                introduced[t] = introductions[begins] = True
    return Coupling(anchors, introduced, introductions, after_jump)


Scheme = Callable[[Signals, CreditConfig, np.random.Generator], Array]
"""γ [n] of a trajectory."""


def local(signals: Signals, cfg: CreditConfig, rng: np.random.Generator) -> Array:
    """Amplifies the highest jumps of WAAD."""
    return _amplified(top(signals.jump, cfg.share), cfg)


def global_(signals: Signals, cfg: CreditConfig, rng: np.random.Generator) -> Array:
    """Amplifies the anchors."""
    return _amplified(top(signals.fai, cfg.share), cfg)


def coupled(signals: Signals, cfg: CreditConfig, rng: np.random.Generator) -> Array:
    """Amplifies the anchors, and gives a part α of what an introduced one gets to the token that introduces it.

    `γ = 1 + (γ_amp − 1)·(1[T_glob∖D] + (1−α)·1[D] + α·1[I(D)])`
    """
    found, alpha = couple(signals, cfg), cfg.introduction
    shares = (found.anchors & ~found.introduced) + (1 - alpha) * found.introduced + alpha * found.introductions
    return np.asarray(1 + (cfg.amplification - 1) * shares)


def random(signals: Signals, cfg: CreditConfig, rng: np.random.Generator) -> Array:
    """A control: amplifies as many tokens, drawn by lot."""
    return _amplified(top(rng.permutation(len(signals.waad)).astype(np.float64), cfg.share), cfg)


def entropy(signals: Signals, cfg: CreditConfig, rng: np.random.Generator) -> Array:
    """A control: amplifies the tokens that were least certain."""
    return _amplified(top(signals.entropy, cfg.share), cfg)


def uniform(signals: Signals, cfg: CreditConfig, rng: np.random.Generator) -> Array:
    """A control: amplifies every token alike, which is a larger step and nothing else."""
    return np.full(len(signals.waad), cfg.uniform)


SCHEMES: Mapping[str, Scheme] = {
    "local": local,
    "global": global_,
    "coupled": coupled,
    "random": random,
    "entropy": entropy,
    "uniform": uniform,
}
ATTENTIVE = frozenset({"local", "global", "coupled"})
"""Schemes that read attention."""


def _amplified(chosen: Chosen, cfg: CreditConfig) -> Array:
    return np.where(chosen, cfg.amplification, 1.0)
