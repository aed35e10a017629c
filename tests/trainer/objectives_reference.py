"""The policy objectives once more, in plain Python and float64, written from ALGORITHMS' table and the papers.

Nothing here imports the code under test. A row is one trajectory as lists over its action tokens; what an
objective holds constant (`sg`) is read from the row, and only the token's own log-probability moves. Every
function returns the objective J_t, which is maximised, and its slope dJ_t/d log π_θ(t).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    logp: list[float]
    behaviour: list[float]
    proximal: list[float]
    advantage: list[float]
    segment: list[int]
    ret: float


@dataclass(frozen=True)
class Settings:
    ratio_level: str = "token"
    clip_low: float = 0.2
    clip_high: float = 0.28
    ratio_cap: float = 1.5
    dual_clip: float | None = None


def together(row: Row, t: int, level: str) -> list[int]:
    """Tokens that share a ratio with token t."""
    if level == "token":
        return [t]
    if level == "sequence":
        return list(range(len(row.logp)))
    return [k for k in range(len(row.logp)) if row.segment[k] == row.segment[t]]


def geometric(numerator: list[float], denominator: list[float], tokens: list[int]) -> float:
    return sum(numerator[k] - denominator[k] for k in tokens) / len(tokens)


def product(numerator: list[float], denominator: list[float], tokens: list[int]) -> float:
    return sum(numerator[k] - denominator[k] for k in tokens)


def exp20(x: float) -> float:
    return math.exp(min(20.0, max(-20.0, x)))


def ppo(row: Row, t: int, s: Settings) -> tuple[float, float]:
    log_u = geometric(row.logp, row.proximal, together(row, t, s.ratio_level))
    u, a = exp20(log_u), row.advantage[t]
    du = u if abs(log_u) < 20 else 0.0
    low, high = 1 - s.clip_low, 1 + s.clip_high
    clipped = min(max(u, low), high)
    value, slope = (u * a, du * a) if u * a <= clipped * a else (clipped * a, 0.0)
    if s.dual_clip is not None and a < 0 and value < s.dual_clip * a:
        return s.dual_clip * a, 0.0
    return value, slope


def decoupled_ppo(row: Row, t: int, s: Settings) -> tuple[float, float]:
    w = exp20(geometric(row.proximal, row.behaviour, together(row, t, s.ratio_level)))
    value, slope = ppo(row, t, s)
    return min(w, s.ratio_cap) * value, min(w, s.ratio_cap) * slope


def tis(row: Row, t: int, s: Settings) -> tuple[float, float]:
    r = exp20(product(row.logp, row.behaviour, together(row, t, s.ratio_level)))
    weight = min(r, s.ratio_cap) * row.advantage[t]
    return weight * row.logp[t], weight


def cispo(row: Row, t: int, s: Settings) -> tuple[float, float]:
    r = exp20(geometric(row.logp, row.behaviour, together(row, t, s.ratio_level)))
    weight = min(max(r, 1 - s.clip_low), 1 + s.clip_high) * row.advantage[t]
    return weight * row.logp[t], weight


def topr(row: Row, t: int, s: Settings) -> tuple[float, float]:
    r = exp20(product(row.logp, row.behaviour, together(row, t, s.ratio_level)))
    weight = (1.0 if row.ret > 0 else min(r, s.ratio_cap)) * row.advantage[t]
    return weight * row.logp[t], weight


def reinforce(row: Row, t: int, s: Settings) -> tuple[float, float]:
    return row.advantage[t] * row.logp[t], row.advantage[t]


OBJECTIVES: dict[str, Callable[[Row, int, Settings], tuple[float, float]]] = {
    "ppo": ppo,
    "grpo": ppo,
    "dapo": ppo,
    "dr_grpo": ppo,
    "gspo": ppo,
    "decoupled_ppo": decoupled_ppo,
    "tis": tis,
    "cispo": cispo,
    "topr": topr,
    "reinforce": reinforce,
}
