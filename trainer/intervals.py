"""How sure a success rate is."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist


def wilson(successes: int, episodes: int, confidence: float = 0.95) -> tuple[float, float]:
    """Score interval of a proportion (Wilson 1927, JASA 22); (0, 1) when nothing was played."""
    if not 0 <= successes <= episodes:
        raise ValueError(f"{successes} successes of {episodes} episodes")
    if episodes == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate = successes / episodes
    shrink = 1 + z * z / episodes
    centre = (rate + z * z / (2 * episodes)) / shrink
    half = z / shrink * sqrt(rate * (1 - rate) / episodes + z * z / (4 * episodes * episodes))
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == episodes else centre + half
    return low, high
