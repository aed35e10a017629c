"""Tables for people: a run's outcome, success by kind of task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.table import Table

from rocknroll.trainer.cli.progress import evaluation_line, status_line
from rocknroll.trainer.results import EvalResult
from rocknroll.trainer.run_folder import Evaluation, RunFolder, by_split

if TYPE_CHECKING:
    from rocknroll.trainer.audit import Audit
    from rocknroll.trainer.replay import Replayed


def run_summary(folder: RunFolder, out: TextIO) -> None:
    """Where the run is, how it began and ended on each split, and what there is to look at."""
    recipe, metrics, evaluations = folder.recipe(), folder.metrics(), folder.evaluations()
    print(f"{folder.path}: {recipe.environments}, {len(metrics)} of {recipe.learner.iterations} iterations", file=out)
    if metrics:
        print(f"last iteration: {status_line(metrics[-1])}", file=out)
    for alert in folder.alerts():
        lasted = "still open" if alert.resolved is None else f"lasted {alert.resolved - alert.since:.0f} s"
        print(f"alert {alert.rule} ({alert.severity}, {lasted}): {alert.text}", file=out)
    for rows in by_split(evaluations).values():
        for row in rows:
            print(f"{evaluation_label(row):<14} {evaluation_line(row.result)}", file=out)
        kinds_table({evaluation_label(row): row.result for row in (rows[0], rows[-1])}, out)
    if folder.report.is_file():
        print(f"report: {folder.report}", file=out)
    elif not folder.policy.is_dir():
        print(f"not finished; go on with: roll train --resume {folder.path}", file=out)


def ledger_table(audit: Audit, out: TextIO) -> None:
    """Where every episode went, and whether it adds up."""
    table = Table("episodes", "", "", box=None, pad_edge=False, header_style="bold")
    table.columns[1].justify = "right"
    ends = {"completed": audit.completed, "aborted": sum(audit.aborted.values())}
    ends |= {
        "lost to infrastructure": sum(audit.infra_error.values()),
        "interrupted by the run's end": audit.interrupted,
    }
    ends["being played"] = audit.playing
    fates = {"trained on": audit.trained, "handed to the learner": audit.pending, "waiting for a batch": audit.buffered}
    fates |= {"thrown away": sum(audit.discarded.values())}
    table.add_row("started", str(audit.started))
    for name, count in ends.items():
        detail = {"aborted": audit.aborted, "lost to infrastructure": audit.infra_error}.get(name, {})
        table.add_row(f"  {name}", str(count), _by_cause(detail))
        for fate, n in fates.items() if name == "completed" else ():
            table.add_row(f"    {fate}", str(n), _by_cause(audit.discarded) if fate == "thrown away" else "")
    table.add_row("lost", str(audit.lost))
    table.add_row("duplicated", str(audit.duplicated))
    Console(file=out, highlight=False).print(table)
    print(f"{audit.retried} losses were played again, {audit.requeued} groups set back.", file=out)
    for problem in audit.problems:
        print(f"! {problem}", file=out)
    print("balanced" if audit.balanced else "NOT BALANCED", file=out)


def replay_table(found: Replayed, out: TextIO) -> None:
    """How far a policy is from those that played, by iteration."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("iteration", "trajectories", "tokens", "|Δ log p|", "KL", "ESS", "outside clip"):
        table.add_column(column, justify="right")
    for label, row in [*((str(at), one) for at, one in found.iterations.items()), ("all", found.total)]:
        figures = (f"{row.mean_abs_delta:.4f}", f"{row.kl:.5f}", f"{row.ess:.1%}", f"{row.outside_clip:.1%}")
        table.add_row(label, str(row.trajectories), str(row.tokens), *figures)
    Console(file=out, highlight=False).print(table)


def _by_cause(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{cause} {count}" for cause, count in counts.items())


def evaluation_label(row: Evaluation) -> str:
    return "before RL" if row.iteration == 0 else f"iteration {row.iteration}"


def kinds_table(results: Mapping[str, EvalResult], out: TextIO) -> None:
    """Success by kind of task, one column for each evaluation."""
    table = Table("kind", "tasks", box=None, pad_edge=False, header_style="bold")
    for label in results:
        table.add_column(label, justify="right")
    kinds = sorted({kind for result in results.values() for kind in result.by_kind})
    for kind in kinds:
        cells = [result.by_kind.get(kind) for result in results.values()]
        count = max(cell.episodes for cell in cells if cell)
        table.add_row(kind, str(count), *(f"{cell.success_rate:.0%}" if cell else "" for cell in cells))
    Console(file=out, highlight=False).print(table)
