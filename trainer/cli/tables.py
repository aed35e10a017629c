"""Tables for people: a run's outcome, success by kind of task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

from rich.console import Console
from rich.table import Table

from rocknroll.trainer.cli.progress import evaluation_line, status_line
from rocknroll.trainer.results import EvalResult
from rocknroll.trainer.run_folder import Evaluation, RunFolder, by_split


def run_summary(folder: RunFolder, out: TextIO) -> None:
    """Where the run is, how it began and ended on each split, and what there is to look at."""
    recipe, metrics, evaluations = folder.recipe(), folder.metrics(), folder.evaluations()
    print(f"{folder.path}: {recipe.environments}, {len(metrics)} of {recipe.learner.iterations} iterations", file=out)
    if metrics:
        print(f"last iteration: {status_line(metrics[-1])}", file=out)
    for rows in by_split(evaluations).values():
        for row in rows:
            print(f"{evaluation_label(row):<14} {evaluation_line(row.result)}", file=out)
        kinds_table({evaluation_label(row): row.result for row in (rows[0], rows[-1])}, out)
    if folder.report.is_file():
        print(f"report: {folder.report}", file=out)
    elif not folder.policy.is_dir():
        print(f"not finished; go on with: roll train --resume {folder.path}", file=out)


def evaluation_label(row: Evaluation) -> str:
    return "before RL" if row.iteration == 0 else f"iteration {row.iteration}"


def kinds_table(results: Mapping[str, EvalResult], out: TextIO) -> None:
    """Success by kind of task, one column for each evaluation."""
    table = Table("task", "games", box=None, pad_edge=False, header_style="bold")
    for label in results:
        table.add_column(label, justify="right")
    kinds = sorted({kind for result in results.values() for kind in result.by_kind})
    for kind in kinds:
        cells = [result.by_kind.get(kind) for result in results.values()]
        games = max(cell.episodes for cell in cells if cell)
        table.add_row(kind, str(games), *(f"{cell.success_rate:.0%}" if cell else "" for cell in cells))
    Console(file=out, highlight=False).print(table)
