"""What a cache did so far."""

from __future__ import annotations

import operator
from dataclasses import astuple, dataclass, replace


@dataclass
class Stats:
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    expirations: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of the look-ups that found something; 0 if there was none."""
        return self.hits / (self.hits + self.misses) if self.hits else 0.0

    def copy(self) -> Stats:
        """The numbers as they are now; they no longer change."""
        return replace(self)

    def since(self, earlier: Stats) -> Stats:
        """What happened after an earlier copy."""
        return Stats(*map(operator.sub, astuple(self), astuple(earlier)))
