"""What a set of games looks like to those who play them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rocknroll.envs.text import Progress

DATA_FOLDER = "json_2.1.1"
"""Name of the official data's folder, kept so that the official loader's settings work unchanged."""

FOLDERS = {"train": "train", "seen": "valid_seen", "unseen": "valid_unseen"}
"""Our splits under the official names."""


@dataclass(frozen=True)
class GameRef:
    """Where a game is and what it asks."""

    path: str
    kind: str
    scene: int


class Library(Protocol):
    """Games by split."""

    root: Path
    """The folder that holds `json_2.1.1`."""

    def prepare(self, progress: Progress | None = None) -> None:
        """Make or check the games; idempotent.

        Raises:
            EnvDataError: they cannot be made or are not all there.
        """

    def games(self, split: str) -> Sequence[GameRef]:
        """Games of a split, in an order that the configuration fixes; prepares when needed."""


def balanced(refs: Sequence[GameRef], most: int, seed: str) -> list[GameRef]:
    """At most `most` games, shuffled by seed, task types in turn."""
    by_kind: dict[str, list[GameRef]] = {}
    for ref in refs:
        by_kind.setdefault(ref.kind, []).append(ref)
    rng = random.Random(seed)
    queues = [rng.sample(group, len(group)) for _, group in sorted(by_kind.items())]
    rounds = max(map(len, queues), default=0)
    return [queue[turn] for turn in range(rounds) for queue in queues if turn < len(queue)][:most]
