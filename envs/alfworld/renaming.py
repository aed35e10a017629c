"""Other names for things: the same game, in which an apple is called a mug and a mug a pencil.

A small policy that plays few games learns the games by heart (docs/results.md). Renamed things leave it
only what is true of every game: look for what the task names. Receptacles and lamps, which are tools,
keep their names. A renaming is a permutation that depends on its seed alone, applied to every text
that the player sees and undone in every command; the engine below knows nothing of it.
"""

from __future__ import annotations

import random
import re
from functools import cache

from rocknroll.envs.alfworld import package

LAMPS = ("desklamp", "floorlamp")


class Renaming:
    """A permutation of the names of things."""

    def __init__(self, seed: int) -> None:
        names = _names()
        others = random.Random(seed).sample(names, len(names))
        self._shown = dict(zip(names, others, strict=True))
        self._meant = dict(zip(others, names, strict=True))

    def show(self, text: str) -> str:
        """What the player reads instead of `text`."""
        return _pattern().sub(lambda found: self._shown[found[0]], text)

    def mean(self, command: str) -> str:
        """What the engine is told instead of `command`."""
        return _pattern().sub(lambda found: self._meant[found[0]], command)


@cache
def _names() -> list[str]:
    constants = package.constants()
    kept = {*(name.lower() for name in constants.RECEPTACLES), *LAMPS}
    return sorted({name.lower() for name in constants.OBJECTS} - kept)


@cache
def _pattern() -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(sorted(_names(), key=len, reverse=True))})\b")
