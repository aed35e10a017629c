"""`roll grade`: grade predictions on instances of SWE-bench, and report in the official form."""

from __future__ import annotations

import asyncio
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from rocknroll.sandbox.cli.boundary import DebugOption
from rocknroll.sandbox.cli.output import JsonOption, print_json, stdout_kept_clean
from rocknroll.trainer.cli import swebench
from rocknroll.trainer.cli.progress import make_ui


def grade(
    instances: Annotated[str, typer.Argument(help="mini-swe, a JSONL, JSON or Parquet file, a folder or a hub id.")],
    predictions: Annotated[
        Path, typer.Option("--predictions", "-p", help="JSONL or JSON with `instance_id` and `model_patch`.")
    ],
    runtime: swebench.RuntimeOption = None,
    jobs: swebench.JobsOption = None,
    only: swebench.OnlyOption = None,
    results: swebench.ResultsOption = None,
    timeout_s: swebench.TimeoutOption = 1800.0,
    split: swebench.SplitOption = "test",
    pull: swebench.PullOption = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Grade patches in fresh sandboxes; a patch that only reports success is not resolved.

    Examples:

      roll grade mini-swe --predictions preds.jsonl

      roll grade tasks.jsonl -p preds.jsonl --runtime docker --results graded.jsonl --json
    """
    from rocknroll.envs.swebench.campaign import Record
    from rocknroll.envs.swebench.predictions import grade_predictions, load_predictions

    found, wrong = swebench.read(instances, split, only or [])
    with stdout_kept_clean() if as_json else nullcontext(), make_ui() as ui:
        report = asyncio.run(
            grade_predictions(
                found,
                wrong,
                load_predictions(str(predictions)),
                swebench.place(runtime, pull, found),
                parallel=swebench.parallel(jobs),
                record=Record(results),
                timeout_s=timeout_s,
                tell=lambda done, total: ui.progress("patches", done, total),
            )
        )
    if as_json:
        print_json(report)
        return
    print(f"{report['resolved_instances']} of {report['submitted_instances']} resolved")
    for name, why in report["why"].items():
        print(f"{name}: {why}")
    for name, marks in report["cheating"].items():
        print(f"{name}: put back {', '.join(marks['undone']) or 'nothing'}; {'; '.join(marks['trips']) or 'no trip'}")
    for name, text in report["errors"].items():
        print(f"{name}: {text}", file=sys.stderr)
