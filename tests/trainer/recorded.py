"""Episodes as the scheduler reports them, and runs whose ledger, files and metrics were written by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import played

from rocknroll.envs.text import Task
from rocknroll.trainer.rollout.events import BatchTaken, Episode, Kept, Started
from rocknroll.trainer.rollout.ledger import Ledger
from rocknroll.trainer.run_folder import RunFolder
from rocknroll.trainer.trajectory import Outcome, Trajectory

NOTHING_OPEN: Mapping[str, Any] = {"open": []}
"""What of a scheduler's state an audit reads, when every group is in a batch or given up."""


def member(group: int = 0, number: int = 0, attempt: int = 0) -> Episode:
    return Episode(group, number, attempt, Task(f"task {group}", "kind"))


def finished(of: Episode, outcome: Outcome = Outcome.COMPLETED, cause: str = "") -> Trajectory:
    """Its trajectory, which follows from its id."""
    rng = np.random.default_rng([of.group, of.member, of.attempt])
    made = played.trajectory(rng, of.id, group_id=f"g{of.group}", outcome=outcome)
    return replace(made, task_id=of.task.id, cause=cause)


def keep(ledger: Ledger, *episodes: Episode, state: Mapping[str, Any] = NOTHING_OPEN) -> None:
    """Start and finish them."""
    for one in episodes:
        ledger.record([Started(one, 0)], state)
        ledger.record([Kept(one, finished(one))], state)


def take(ledger: Ledger, batch: int, groups: Sequence[Sequence[Episode]], round_kind: str = "") -> None:
    """Hand these groups out."""
    ids = tuple(tuple(one.id for one in group) for group in groups)
    ledger.record([BatchTaken(batch, ids, round_kind)], NOTHING_OPEN)


def trained(folder: RunFolder, *iterations: int) -> None:
    """Rows of `metrics.jsonl`."""
    folder.path.mkdir(parents=True, exist_ok=True)
    with folder.metrics_file.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps({"iteration": float(iteration)}) + "\n" for iteration in iterations)
