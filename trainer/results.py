"""What training and evaluation return, and how it is written down. Imports nothing heavy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocknroll.trainer.intervals import wilson


@dataclass(frozen=True)
class KindResult:
    """Successes on one kind of task."""

    episodes: int
    successes: int

    @property
    def success_rate(self) -> float:
        return self.successes / self.episodes if self.episodes else 0.0


@dataclass(frozen=True)
class EvalResult:
    """Successes of one policy on one split."""

    split: str
    episodes: int
    successes: int
    by_kind: Mapping[str, KindResult] = field(default_factory=dict)
    domain: str = ""
    """Which of the run's environments; "" where it has one."""

    @classmethod
    def of(cls, split: str, outcomes: Iterable[tuple[str, bool]], domain: str = "") -> EvalResult:
        """Count (task kind, success) pairs."""
        played: Counter[str] = Counter()
        won: Counter[str] = Counter()
        for kind, success in outcomes:
            played[kind] += 1
            won[kind] += int(success)
        by_kind = {kind: KindResult(played[kind], won[kind]) for kind in sorted(played)}
        return cls(split, played.total(), won.total(), by_kind, domain)

    @classmethod
    def pooled(cls, results: Iterable[EvalResult]) -> EvalResult:
        """All episodes of one split together, whatever domain they are of."""
        parts = list(results)
        kinds = sorted({kind for part in parts for kind in part.by_kind})
        cells = {kind: [part.by_kind[kind] for part in parts if kind in part.by_kind] for kind in kinds}
        return cls(
            parts[0].split,
            sum(part.episodes for part in parts),
            sum(part.successes for part in parts),
            {kind: KindResult(sum(c.episodes for c in of), sum(c.successes for c in of)) for kind, of in cells.items()},
        )

    @property
    def where(self) -> str:
        """What was played, for people: `unseen`, or with several domains `easy unseen`."""
        return f"{self.domain} {self.split}".lstrip()

    @property
    def success_rate(self) -> float:
        return self.successes / self.episodes if self.episodes else 0.0

    @property
    def ci95(self) -> tuple[float, float]:
        """Wilson interval of the success rate."""
        return wilson(self.successes, self.episodes)

    def to_json(self) -> dict[str, Any]:
        """What `roll eval --json` prints, and a row of `evaluations.jsonl` less its iteration."""
        return {
            **({"domain": self.domain} if self.domain else {}),
            "split": self.split,
            "episodes": self.episodes,
            "successes": self.successes,
            "success_rate": self.success_rate,
            "ci95": list(self.ci95),
            "by_kind": {
                kind: {"episodes": r.episodes, "successes": r.successes, "success_rate": r.success_rate}
                for kind, r in self.by_kind.items()
            },
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> EvalResult:
        """Read what `to_json` wrote (keys beside its own are ignored)."""
        by_kind = {kind: KindResult(r["episodes"], r["successes"]) for kind, r in row["by_kind"].items()}
        return cls(row["split"], row["episodes"], row["successes"], by_kind, row.get("domain", ""))


@dataclass(frozen=True)
class TrainResult:
    """A finished run. Success rates are those of the first split that the recipe evaluates, all domains together."""

    run: Path
    episodes: int
    """Training episodes learned from."""
    success_before: float
    success_after: float
    ci95_after: tuple[float, float]
    wall_s: float

    def to_json(self) -> dict[str, Any]:
        """What `roll train --json` prints."""
        return {
            "run": str(self.run),
            "episodes": self.episodes,
            "success_before": self.success_before,
            "success_after": self.success_after,
            "ci95_after": list(self.ci95_after),
            "wall_s": self.wall_s,
        }
