"""Training runs as the cells of a table: begun, gone on with, or left as they are; and what they came to."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rocknroll.trainer.run_folder import RunFolder

TIMES = ("learner/wait_s", "learner/prepare_s", "learner/train_s", "learner/publish_s")
"""What an iteration takes; evaluations are not in it."""


def run_cell(run: RunFolder, recipe: str, overrides: Sequence[str], log: Path | None = None) -> None:
    """`roll train` the recipe in the folder, or go on with it there, unless it is finished.

    `log`: where its output goes, for runs side by side.
    """
    if run.policy.is_dir() and run.report.is_file():
        return
    command = [str(Path(sys.executable).with_name("roll")), "train"]
    if run.exists():
        command += ["--resume", str(run.path)]
    else:
        command += [recipe, *overrides, f"name={run.path.name}", f"output_dir={run.path.parent}"]
    print(f"== {' '.join(command[1:])}", file=sys.stderr, flush=True)
    if log is None:
        subprocess.run(command, stdout=sys.stderr, check=True)
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        subprocess.run(command, stdout=output, stderr=output, check=True)


def seconds(row: Mapping[str, float]) -> float:
    """What the iteration of a row of metrics took."""
    return sum(row.get(key, 0.0) for key in TIMES)
