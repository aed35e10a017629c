"""What critics and credit do to learning: nine methods, several seeds, one environment.

    grpo                              advantages of the group
    ppo, asyppo                       GAE on one critic of the policy's size; on two small ones, with their masks
    uniform, random, entropy          GRPO with credit by the controls
    local, global, coupled            GRPO with credit from attention

Every run begins with the same warm-started policy and is one `roll train` in a folder of its own; one that was
interrupted is resumed. What a finished one came to is kept in a file of cells (`--cells`), and it is not run again,
so the table can be filled over days and on several machines that take the file along. Success is that of the recipe's
held-out evaluation, after the same number of trajectories, and within the same time, which is that of the fastest
run: between two evaluations on a straight line. Time is what the iterations took, evaluations not included. Where
other work ran beside the cells, `--pace N` measures it apart: N iterations of every method, one method at a time, on
a machine that does nothing else; the medians are kept with the cells. Intervals are Student's over the seeds;
differences are of runs of one seed.
"""

from __future__ import annotations

import reporting  # isort: skip  (first: it mends the import path)

import argparse
import hashlib
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from reporting.runs import run_cell, seconds
from scipy import stats

from rocknroll.trainer.credit.rhythm import SCHEMES
from rocknroll.trainer.domains import Domains
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.recipe_loader import load_recipe
from rocknroll.trainer.run_folder import RunFolder
from rocknroll.trainer.warmstart import prepare_policy

BASELINE = "grpo"
GAE = ("learner.advantage=gae", "learner.entropy_coef=1e-3")
METHODS: Mapping[str, Sequence[str]] = {
    BASELINE: ("learner.advantage=grpo",),
    "ppo": (*GAE, "critics.kind=symmetric"),
    "asyppo": (*GAE, "critics.kind=asyppo"),
    **{kind: ("learner.advantage=grpo", f"credit.kind={kind}") for kind in SCHEMES},
}
QUICK = (
    "env.config.train_puzzles=64",
    "warmstart.games=64",
    "warmstart.epochs=1",
    "rollout.num_groups=2",
    "rollout.group_size=4",
    "sandbox.count=2",
    "engine.slots=8",
    "learner.minibatches=1",
    "learner.iterations=2",
    "eval.every=1",
    "eval.episodes=8",
)
DIAGNOSTICS = (
    "credit/gamma",
    "credit/coupling_rate",
    "credit/coupling_by_chance",
    "critics/explained_variance",
    "critics/sigma_p50",
    "critics/advantage_masked_share",
    "ratio/ess",
)


@dataclass(frozen=True)
class Curve:
    """One finished run."""

    trained_s: Sequence[float]
    """When each evaluation came, in seconds of training."""
    success: Sequence[float]
    diagnostics: Mapping[str, float]
    """Means over the iterations."""

    @classmethod
    def of(cls, run: RunFolder) -> Curve:
        rows, evaluations = run.metrics(), run.evaluations()
        until = np.concatenate([[0.0], np.cumsum([seconds(row) for row in rows])])
        reported = {name: [row[name] for row in rows if name in row] for name in DIAGNOSTICS}
        return cls(
            until[[evaluation.iteration for evaluation in evaluations]].round(1).tolist(),
            [round(evaluation.result.success_rate, 4) for evaluation in evaluations],
            {name: round(statistics.fmean(values), 4) for name, values in reported.items() if values},
        )

    def paced(self, pace_s: float | None, every: int, iterations: int) -> Curve:
        """The same curve with the time that it takes alone."""
        if pace_s is None:
            return self
        at = [min(number * every, iterations) for number in range(len(self.success))]
        return replace(self, trained_s=[round(pace_s * iteration, 1) for iteration in at])

    def within(self, budget_s: float) -> float:
        """Success after so many seconds of training."""
        return float(np.interp(budget_s, self.trained_s, self.success))


class Cells:
    """What finished runs came to, by `METHOD-SEED`, in a file that says of which recipe they are."""

    def __init__(self, path: Path, recipe: Recipe) -> None:
        """
        Raises:
            SystemExit: the file is of another recipe, or not of this script.
        """
        self._path = path
        # Defaults left out: a setting that is new since has not changed what was run.
        self._of = hashlib.sha256(recipe.model_dump_json(exclude_defaults=True).encode()).hexdigest()[:16]
        self.curves: dict[str, Curve] = {}
        self.paces_s: dict[str, float] = {}
        """Seconds of an iteration by method, measured alone."""
        if not path.exists():
            return
        try:
            kept = json.loads(path.read_text())
            self.curves = {name: Curve(**curve) for name, curve in kept["cells"].items()}
            self.paces_s = dict(kept.get("paces_s", {}))
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            sys.exit(f"{path} is no file of cells ({error!r}): name another with --cells")
        if kept["of"] != self._of:
            sys.exit(f"{path} has cells of other settings than these: name another with --cells")

    def add(self, name: str, curve: Curve) -> None:
        self.curves[name] = curve
        self.write()

    def write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        cells = {name: asdict(curve) for name, curve in self.curves.items()}
        kept = {"of": self._of, "cells": cells, "paces_s": self.paces_s}
        self._path.write_text(json.dumps(kept, indent=1) + "\n")


def interval(values: Sequence[float]) -> list[float]:
    """Mean and the bounds of its 95% interval (Student's t); of a single value there are none."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return [round(mean, 4)]
    half = float(stats.t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5
    return [round(mean, 4), round(mean - half, 4), round(mean + half, 4)]


def result(curves: Sequence[Curve], baseline: Sequence[Curve], budget_s: float) -> dict[str, Any]:
    """A method's row of the table; `baseline`: the runs of the same seeds."""
    at_the_end = [curve.success[-1] for curve in curves]
    in_time = [curve.within(budget_s) for curve in curves]
    pairs = list(zip(curves, baseline, strict=True))
    names = dict.fromkeys(name for curve in curves for name in curve.diagnostics)
    return {
        "before": round(statistics.fmean(curve.success[0] for curve in curves), 4),
        "equal_samples": interval(at_the_end),
        "by_seed": [round(float(value), 4) for value in at_the_end],
        "equal_time": interval(in_time),
        "difference_equal_samples": interval([float(own.success[-1] - other.success[-1]) for own, other in pairs]),
        "difference_equal_time": interval([own.within(budget_s) - other.within(budget_s) for own, other in pairs]),
        "train_s": round(statistics.fmean(curve.trained_s[-1] for curve in curves), 1),
        "diagnostics": {
            name: round(statistics.fmean(c.diagnostics[name] for c in curves if name in c.diagnostics), 4)
            for name in names
        },
    }


def percent(found: Sequence[float], sign: str = "") -> str:
    """An interval as it stands in the table."""
    mean, *bounds = (f"{100 * value:{sign}.1f}" for value in found)
    return f"{mean} ({' to '.join(bounds)})" if bounds else mean


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The table in Markdown, as in docs/results.md."""
    lines = [
        f"| | equal samples, % (95% interval) | over `{BASELINE}` | equal time, % | over `{BASELINE}` | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for method, row in rows.items():
        cells = [
            percent(row["equal_samples"]),
            percent(row["difference_equal_samples"], "+"),
            percent(row["equal_time"]),
            percent(row["difference_equal_time"], "+"),
        ]
        if method == BASELINE:
            cells[1] = cells[3] = ""
        lines.append(f"| `{method}` | {' | '.join(cells)} | {row['train_s']:.0f} |")
    return "\n".join(lines)


def say(phase: str, done: int, total: int) -> None:
    """Ten lines of progress for each phase."""
    if done * 10 // total > (done - 1) * 10 // total:
        print(f"{phase} {done}/{total}", file=sys.stderr, flush=True)


def main() -> int:
    """Run the cells that are missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument(
        "--quick", action="store_true", help="tiny runs of four methods: shows that the table can be made"
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/learning_credit"), help="where the runs go")
    parser.add_argument("--cells", type=Path, help="file of finished cells (cells.json in that folder)")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side (1); all slow down alike")
    parser.add_argument("--recipe", default="countdown", help="a shipped recipe or a file (countdown)")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--every", type=int, default=10, help="iterations between evaluations (10)")
    parser.add_argument("--methods", nargs="+", default=tuple(METHODS), choices=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument(
        "--pace", type=int, default=0, metavar="N", help="measure the time of N iterations of each, alone"
    )
    parser.add_argument("--set", nargs="+", default=(), metavar="KEY=VALUE", help="overrides of the recipe, for all")
    arguments = parser.parse_args()
    methods, seeds = list(dict.fromkeys([BASELINE, *arguments.methods])), arguments.seeds
    shared = [*arguments.set, f"learner.iterations={arguments.iterations}", f"eval.every={arguments.every}"]
    folder = arguments.folder / Path(arguments.recipe).stem
    if arguments.quick:
        methods, seeds, folder = [BASELINE, "ppo", "asyppo", "coupled"], [0], folder / "quick"
        shared = [*arguments.set, *QUICK]
    recipe = load_recipe([arguments.recipe], shared)
    cells = Cells(arguments.cells or folder / "cells.json", recipe)
    # Seed by seed, so that a table that is not full yet already compares methods.
    missing = [(seed, method) for seed in seeds for method in methods if f"{method}-{seed}" not in cells.curves]
    untimed = [method for method in methods if arguments.pace and method not in cells.paces_s]
    if missing or untimed:
        policy = prepare_policy(recipe, Domains(recipe).families, say)
        shared += [f"policy.model={policy}", "warmstart.enabled=false"]

    def play(seed: int, method: str) -> RunFolder:
        run = RunFolder(folder / f"{method}-{seed}")
        log = folder / f"{run.path.name}.log" if arguments.jobs > 1 else None
        run_cell(run, arguments.recipe, [*shared, *METHODS[method], f"seed={seed}"], log)
        return run

    with ThreadPoolExecutor(arguments.jobs) as pool:
        for run in pool.map(lambda cell: play(*cell), missing):
            cells.add(run.path.name, Curve.of(run))
    for method in untimed:
        run = RunFolder(folder / f"pace-{method}")
        alone = [f"learner.iterations={arguments.pace}", "eval.every=0", "eval.episodes=1", "seed=0"]
        run_cell(run, arguments.recipe, [*shared, *METHODS[method], *alone])
        cells.paces_s[method] = round(statistics.median(seconds(row) for row in run.metrics()[1:]), 3)
        cells.write()
    curves = {
        method: [
            cells.curves[f"{method}-{seed}"].paced(cells.paces_s.get(method), arguments.every, arguments.iterations)
            for seed in seeds
        ]
        for method in methods
    }
    budget_s = min(curve.trained_s[-1] for of_method in curves.values() for curve in of_method)
    rows = {method: result(of_method, curves[BASELINE], budget_s) for method, of_method in curves.items()}
    print(table(rows), file=sys.stderr)
    times = {
        f"time_{method}_over_{BASELINE}": round(row["train_s"] / rows[BASELINE]["train_s"], 3)
        for method, row in rows.items()
        if method != BASELINE
    }
    figures = {"methods": rows, "budget_s": round(float(budget_s), 1), "seeds": list(seeds)}
    reporting.emit("learning_credit", times, figures, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
