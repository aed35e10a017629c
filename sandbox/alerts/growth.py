"""Does a process only ever grow? Told from samples of its memory (pure).

Programs breathe: they take memory for a while and give it back. A leak shows in what they never go below, so the last
hour is cut into parts, and only when the least of every part is above the least of the part before has it grown.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise

PARTS = 6
PART_S = 600.0
WINDOW_S = PARTS * PART_S
"""An hour: shorter, and a warm-up looks like a leak."""


class Growth:
    """Memory of one process, sampled at any pace."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, now_s: float, used_bytes: int) -> None:
        """What it uses now."""
        self._samples.append((now_s, used_bytes))
        while self._samples[0][0] <= now_s - WINDOW_S - PART_S:
            self._samples.popleft()

    def grown_bytes(self) -> int:
        """From the least of the first part to that of the last; 0 when it shrank in between, or within the first
        hour."""
        least = self._least_of_parts()
        if len(least) < PARTS or any(later <= earlier for earlier, later in pairwise(least)):
            return 0
        return least[-1] - least[0]

    def __str__(self) -> str:
        return f"uses {self._samples[-1][1] / (1 << 20):.0f} MiB" if self._samples else "has not been looked at"

    def _least_of_parts(self) -> list[int]:
        """The least of each part of the last hour, oldest first; fewer than PARTS while not every part has samples."""
        if not self._samples:
            return []
        end = self._samples[-1][0]
        parts: dict[int, int] = {}
        for at, used in self._samples:
            part = int((end - at) // PART_S)
            if part < PARTS:
                parts[part] = min(used, parts.get(part, used))
        return [parts[part] for part in sorted(parts, reverse=True)]
