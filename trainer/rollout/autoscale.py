"""How many environments a run can use: enough to fill the engines, and no more than there are episodes to play.

An episode is in its environment or in an engine. If episodes spend a share g of their time in engines, n of them at
once are g·n in the engines in the mean (Little's law, L = λ·W, for both parts of an episode). While that is less than
the places there, P, it takes n = P / g to fill them. When it is more, the rest only waits there and ages: then the
(1 - g)·n in environments are all that full engines can feed, and n = P + (1 - g)·n is enough.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

INTERVAL_S = 5.0
"""Between two looks at the load."""
WINDOW = 24
"""Looks that the number of episodes to play is the most of: while a synchronous learner computes there are none, which
is no reason to give sandboxes up."""
SMOOTHING = 0.3
"""Weight of the newest look."""
SMALLEST_SHARE = 0.01
STEP = 1 / 8
"""Changes of less than this share of the number are not worth it."""


@dataclass(frozen=True)
class Load:
    """What a run does; all seconds since any moment before."""

    time_s: float
    demand: int
    """Episodes that play, or would if there were environments for all."""
    playing_s: float
    """Seconds of episodes, and ..."""
    environment_s: float
    """... those that they spent in steps and resets."""


class Autoscaler:
    """Decides on the number of environments; one call of `observe` each `INTERVAL_S`."""

    def __init__(self, least: int, most: int, engine_places: int) -> None:
        """`engine_places`: sequences that the engines decode at once, all together."""
        self._least = least
        self.most = most
        self._engine_places = engine_places
        self._last: Load | None = None
        self._playing: float | None = None
        self._share = 1.0
        self._demands: deque[int] = deque(maxlen=WINDOW)
        self.count = self._bounded(engine_places)
        """The number now; to begin with, one environment for each place in the engines."""

    def observe(self, load: Load) -> int:
        """The number of environments from now on."""
        last, self._last = self._last, load
        self._demands.append(load.demand)
        if last is not None and load.playing_s > last.playing_s:
            self._look(
                (load.playing_s - last.playing_s) / (load.time_s - last.time_s),
                (load.environment_s - last.environment_s) / (load.playing_s - last.playing_s),
            )
        if self._playing is not None:
            wanted = self._wanted(self._playing)
            if abs(wanted - self.count) >= STEP * self.count:
                self.count = wanted
        return self.count

    def _look(self, playing: float, in_environments: float) -> None:
        share = min(1.0, max(SMALLEST_SHARE, 1.0 - in_environments))
        if self._playing is None:
            self._playing, self._share = playing, share
        else:
            self._playing += SMOOTHING * (playing - self._playing)
            self._share += SMOOTHING * (share - self._share)

    def _wanted(self, playing: float) -> int:
        room = self._share * playing <= self._engine_places
        fills = self._engine_places / self._share if room else self._engine_places + (1.0 - self._share) * playing
        demand = max(self._demands)
        if len(self._demands) < WINDOW:
            demand = max(demand, self.count)  # what is asked for later in a batch is not known yet
        return self._bounded(min(math.ceil(fills), demand))

    def _bounded(self, count: int) -> int:
        return max(self._least, min(self.most, count))
