"""A run's folder: what lies where, who may make it, and how its records are read.

`runs/<name>/` holds `recipe.yaml` (the resolved recipe), `metrics.jsonl` (one row an iteration),
`evaluations.jsonl`, `alerts.jsonl`, `ledger.sqlite`, `trajectories/*.parquet`, `insights/*.parquet`, `checkpoints/`,
while it plays `fleet.json`, and, at the end, `policy/` and `report.html`. One process writes it at a time. A last line
that a killed writer left unfinished is not a record; a broken line before it is an error.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocknroll.sandbox.alerts.rule import Alert
from rocknroll.trainer.errors import RunFolderError
from rocknroll.trainer.file_lock import FileHeld, FileLock
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.recipe_loader import RECIPE_FILE, dump_recipe, load_recipe
from rocknroll.trainer.results import EvalResult


@dataclass(frozen=True)
class Evaluation:
    """One row of `evaluations.jsonl`."""

    iteration: int
    """Updates that the evaluated policy had seen; 0 is before RL."""
    result: EvalResult


@dataclass(frozen=True)
class RunFolder:
    """Paths and records of one run."""

    path: Path

    @property
    def recipe_file(self) -> Path:
        return self.path / RECIPE_FILE

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def evaluations_file(self) -> Path:
        return self.path / "evaluations.jsonl"

    @property
    def alerts_file(self) -> Path:
        """Alerts of the run, one row each time that one was raised or resolved (`sandbox/alerts/rule.py`)."""
        return self.path / "alerts.jsonl"

    @property
    def fleet_file(self) -> Path:
        """Its sandboxes while it plays in them (`trainer/rollout/showing.py`)."""
        return self.path / "fleet.json"

    @property
    def trajectories(self) -> Path:
        return self.path / "trajectories"

    @property
    def insights(self) -> Path:
        """What the learner saw in each action token (`trainer/insights.py`)."""
        return self.path / "insights"

    @property
    def ledger(self) -> Path:
        """What became of every episode (`trainer/rollout/ledger.py`)."""
        return self.path / "ledger.sqlite"

    @property
    def replayed_from(self) -> Path:
        """In a run that was trained offline: where its trajectories come from, as JSON."""
        return self.path / "replayed_from.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def policy(self) -> Path:
        """The trained policy, once the run is over."""
        return self.path / "policy"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def exists(self) -> bool:
        """Whether there is a run here (and not merely a folder)."""
        return self.recipe_file.is_file()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else writes this run meanwhile; makes the folder.

        Raises:
            RunFolderError: another process is writing it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            lock = FileLock(self.path / "run.lock")
        except FileHeld as held:
            raise RunFolderError(
                f"{self.path} is being written by process {held.pid}: a `roll train` is at work on this run. Wait until"
                f" it has ended, or stop it by Ctrl-C (`kill -INT {held.pid}`) and go on with `roll train --resume`."
            ) from held
        try:
            yield
        finally:
            lock.release()

    def remove(self) -> None:
        """Remove the run that is here, if there is one.

        Raises:
            RunFolderError: a process is writing it.
        """
        if self.exists():
            with self.held():
                shutil.rmtree(self.path)

    def recipe(self) -> Recipe:
        """The recipe this run was started with."""
        return load_recipe([self.recipe_file])

    def write_recipe(self, recipe: Recipe) -> None:
        """Make the folder, and the recipe in it; the first thing a run writes."""
        self.path.mkdir(parents=True, exist_ok=True)
        draft = self.recipe_file.with_suffix(".tmp")
        draft.write_text(dump_recipe(recipe), encoding="utf-8")
        draft.replace(self.recipe_file)

    def metrics(self) -> list[dict[str, float]]:
        """Rows of `metrics.jsonl`, oldest first."""
        return _read_rows(self.metrics_file)

    def evaluations(self) -> list[Evaluation]:
        """Rows of `evaluations.jsonl`, oldest first."""
        rows = _read_rows(self.evaluations_file)
        try:
            return [Evaluation(row["iteration"], EvalResult.from_json(row)) for row in rows]
        except (KeyError, TypeError) as error:
            raise RunFolderError(f"{self.evaluations_file}: a row lacks {error}. Remove the row to go on.") from error

    def alerts(self) -> list[Alert]:
        """Every alert of the run as it stands now, oldest first."""
        newest: dict[tuple[str, str, float], Alert] = {}
        for row in _read_rows(self.alerts_file):
            alert = Alert.from_json(row)
            newest[alert.rule, alert.subject, alert.since] = alert
        return sorted(newest.values(), key=lambda alert: alert.since)

    def append_alert(self, alert: Alert) -> None:
        """Write down that an alert was raised or resolved."""
        _append_row(self.alerts_file, alert.to_json())

    def append_evaluation(self, iteration: int, result: EvalResult) -> None:
        """Add one evaluation."""
        _append_row(self.evaluations_file, {"iteration": iteration, **result.to_json()})


def new_run(recipe: Recipe, *, force: bool = False) -> RunFolder:
    """Where this recipe's run goes; makes and removes nothing. With `force` an earlier run may be there.

    Raises:
        RunFolderError: something is there already and `force` is not given, or it is no run.
    """
    folder = RunFolder(Path(recipe.output_dir) / recipe.name)
    if folder.path.is_dir() and not any(folder.path.iterdir()):
        return folder
    if not (folder.path.exists() or folder.path.is_symlink()):
        return folder
    if not folder.exists():
        raise RunFolderError(
            f"{folder.path} is in the way: it exists and is no run (there is no {RECIPE_FILE} in it), so it is left"
            " alone. Choose another name with `--name`, or move it away."
        )
    if not force:
        raise RunFolderError(
            f"There is a run in {folder.path} already, and a run never overwrites another. Go on with it by"
            f" `roll train --resume {folder.path}`, give the new one another name with `--name`, or replace the old"
            " one with `--force`."
        )
    return folder


def open_run(path: Path) -> RunFolder:
    """An existing run.

    Raises:
        RunFolderError: there is none.
    """
    folder = RunFolder(path)
    if not folder.exists():
        what = f"there is no {RECIPE_FILE} in it" if path.is_dir() else "there is no such folder"
        near = sorted(
            str(file.parent) for file in (path.parent if path.parent.is_dir() else Path()).glob("*/recipe.yaml")
        )
        runs = f" Runs beside it: {', '.join(near)}." if near else ""
        raise RunFolderError(f"{path} is no run: {what}.{runs} Give the folder that `roll train` named.")
    return folder


def by_split(evaluations: Iterable[Evaluation]) -> dict[str, list[Evaluation]]:
    """Evaluations of each split (of each domain: `EvalResult.where`), oldest first."""
    splits: dict[str, list[Evaluation]] = {}
    for row in evaluations:
        splits.setdefault(row.result.where, []).append(row)
    return splits


def _append_row(file: Path, row: Mapping[str, Any]) -> None:
    written = file.read_bytes() if file.is_file() else b""
    if written and not written.endswith(b"\n"):  # its writer was killed: a row behind it would be no record, either
        os.truncate(file, written.rfind(b"\n") + 1)
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(row) + "\n")


def _read_rows(file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        return []
    rows: list[dict[str, Any]] = []
    lines = file.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            if number == len(lines):  # no newline after it: its writer was killed
                break
            raise RunFolderError(f"{file}, line {number}: not JSON ({error}). Remove the line to go on.") from error
    return rows
