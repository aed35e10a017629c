"""How long the answer to a task may take to evaluate. Pure: no clock, no processes.

T = min(max(T_min, λ · T_anchor), T_max), where T_anchor is the longest evaluation of a *correct*
answer to that task so far; without one, T = T_max (RollPacker, arXiv 2509.21009).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class AdaptiveTimeouts:
    """Timeouts by task id."""

    minimum_s: float = 2.0
    maximum_s: float = 30.0
    factor: float = 1.5
    """λ."""
    _anchors_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.minimum_s <= self.maximum_s:
            raise ValueError(
                f"the shortest timeout ({self.minimum_s:g} s) must be above 0 and not above the longest"
                f" ({self.maximum_s:g} s)"
            )

    def timeout_s(self, task_id: str) -> float:
        anchor_s = self._anchors_s.get(task_id)
        if anchor_s is None:
            return self.maximum_s
        return min(max(self.minimum_s, self.factor * anchor_s), self.maximum_s)

    def evaluated(self, task_id: str, took_s: float, correct: bool) -> None:
        """An evaluation ended within its time."""
        if correct:
            self._anchors_s[task_id] = max(took_s, self._anchors_s.get(task_id, 0.0))

    def state_dict(self) -> dict[str, Any]:
        """JSON: the anchors by task id, in seconds."""
        return {"anchors_s": dict(self._anchors_s)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._anchors_s = dict(state["anchors_s"])
