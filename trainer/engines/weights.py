"""Which weights serve whom: the newest set, and older ones for as long as a request finishes on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rocknroll.trainer.engines.forward import Forward


@dataclass(frozen=True, eq=False)
class WeightSet:
    """One policy version in memory. Contexts that it computed carry its `generation`, and serve it alone."""

    forward: Forward
    version: int
    generation: int

    def succeeded_by(self, state: Mapping[str, Any], version: int, *, keep: bool) -> WeightSet:
        """The set with the weights of `state`: in place of this one, or beside it when requests `keep` this one.

        Raises:
            ValueError: names or shapes are not the model's; this set stays as it was.
        """
        if keep:
            forward = self.forward.with_weights(state)
        else:
            self.forward.load(state)
            forward = self.forward
        return WeightSet(forward, version, self.generation + 1)
