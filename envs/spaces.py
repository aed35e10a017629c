"""Gymnasium spaces of text environments."""

from __future__ import annotations

import string

from gymnasium.spaces import Text

LONGEST_TEXT = 65_536
"""Characters; ALFWorld stays below 2,000, a shell's output is capped by its environment."""


def text(longest: int = LONGEST_TEXT) -> Text:
    """Any printable text, empty included."""
    return Text(min_length=0, max_length=longest, charset=string.printable)
