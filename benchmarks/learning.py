"""What staleness costs and saves: every objective at every asynchronous ratio on the ALFWorld recipe.

Each cell is one `roll train` in a folder of its own; a cell that is finished is not run again, one that was
interrupted is resumed, so the table can be filled over days. Success is that of the recipe's held-out
evaluation (greedy) with its Wilson interval; time is what the iterations took, evaluations not included.
"""

from __future__ import annotations

import reporting  # isort: skip  (first: it mends the import path)

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reporting.runs import run_cell, seconds

from rocknroll.trainer.results import EvalResult
from rocknroll.trainer.run_folder import RunFolder

OBJECTIVES = ("grpo", "decoupled_ppo", "tis", "cispo", "topr")
RATIOS = (0.0, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class Cell:
    """One run of the table."""

    objective: str
    async_ratio: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.objective}-alpha{self.async_ratio:g}-seed{self.seed}"

    def run(self, recipe: str, overrides: list[str], folder: Path) -> None:
        """Train it, or go on with it, unless it is finished."""
        own = [f"learner.objective={self.objective}", f"rollout.async_ratio={self.async_ratio:g}", f"seed={self.seed}"]
        run_cell(RunFolder(folder / self.name), recipe, [*own, *overrides])

    def result(self, folder: Path) -> dict[str, Any]:
        """Its row of the table."""
        run = RunFolder(folder / self.name)
        evaluations = run.evaluations()
        rows = run.metrics()
        return {
            "objective": self.objective,
            "async_ratio": self.async_ratio,
            "seed": self.seed,
            "iterations": len(rows),
            "before": _rate(evaluations[0].result),
            "after": _rate(evaluations[-1].result),
            "ci95": [round(bound, 4) for bound in evaluations[-1].result.ci95],
            "train_s": round(sum(map(seconds, rows)), 1),
            "staleness_mean": round(sum(row.get("staleness/mean", 0.0) for row in rows) / max(1, len(rows)), 3),
            "ess_mean": round(sum(row.get("ratio/ess", 1.0) for row in rows) / max(1, len(rows)), 3),
        }


def _rate(result: EvalResult) -> float:
    return round(result.success_rate, 4)


def table(rows: list[Mapping[str, Any]]) -> str:
    """The table in Markdown, as in docs/results.md."""
    lines = [
        "| objective | α | seed | before | after (95% interval) | seconds of training | staleness | ESS |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        low, high = (f"{100 * bound:.1f}" for bound in row["ci95"])
        lines.append(
            f"| `{row['objective']}` | {row['async_ratio']:g} | {row['seed']} | {100 * row['before']:.1f}% "
            f"| {100 * row['after']:.1f}% ({low} to {high}) | {row['train_s']:.0f} "
            f"| {row['staleness_mean']:.2f} | {row['ess_mean']:.3f} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Run the cells that are missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="four tiny runs: shows that the table can be made")
    parser.add_argument("--folder", type=Path, default=Path("runs/learning"), help="where the runs go")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--objectives", nargs="+", default=OBJECTIVES, choices=OBJECTIVES)
    parser.add_argument("--ratios", nargs="+", type=float, default=RATIOS)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0,))
    arguments = parser.parse_args()
    recipe, overrides = "alfworld", [f"learner.iterations={arguments.iterations}", "eval.every=0"]
    objectives, ratios, folder = arguments.objectives, arguments.ratios, arguments.folder
    if arguments.quick:
        recipe, overrides = "alfworld-smoke", ["eval.every=0"]
        objectives, ratios, folder = ("decoupled_ppo", "cispo"), (0.0, 1.0), folder / "quick"
    # Ratio by ratio, so that a table that is not full yet already compares objectives.
    cells = [Cell(o, ratio, seed) for seed in arguments.seeds for ratio in ratios for o in objectives]
    for cell in cells:
        cell.run(recipe, overrides, folder)
    rows = [cell.result(folder) for cell in cells]
    print(table(rows), file=sys.stderr)
    best = {ratio: max(row["after"] for row in rows if row["async_ratio"] == ratio) for ratio in ratios}
    times = {ratio: sum(row["train_s"] for row in rows if row["async_ratio"] == ratio) for ratio in ratios}
    faster = [ratio for ratio in ratios if ratio and 0.0 in times]
    gains = {f"time_sync_over_alpha{ratio:g}": round(times[0.0] / times[ratio], 3) for ratio in faster}
    figures = {"cells": rows, "best_after": {f"{ratio:g}": value for ratio, value in best.items()}}
    reporting.emit("learning", gains, figures, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
