"""`metrics.jsonl`: one JSON object per iteration, in the order of iterations, no iteration twice."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path


class MetricsLog:
    """Appends rows to a file; a resumed run drops what came after its checkpoint."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, row: Mapping[str, float]) -> None:
        """Add one iteration's row. Figures that are not finite are left out: JSON has no word for them."""
        finite = {name: value for name, value in row.items() if math.isfinite(value)}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite) + "\n")

    def keep_until(self, iteration: int) -> None:
        """Drop rows of later iterations, and a last line that a killed writer left unfinished."""
        if not self._path.exists():
            return
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if line.endswith("\n") and json.loads(line)["iteration"] <= iteration]
        draft = self._path.with_suffix(".tmp")
        draft.write_text("".join(kept), encoding="utf-8")
        draft.replace(self._path)
