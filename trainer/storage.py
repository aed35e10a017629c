"""Trajectories on disk: one Parquet file per iteration, written whole or not at all.

One row is one trajectory; the rows of a group stand together and in order. The columns are those of
`SCHEMA` (docs/learner.md explains them). A file appears under its name only when it is complete, so
whatever a killed run leaves behind can be read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rocknroll.trainer.trajectory import Group, Outcome, Trajectory, Turn

ROWS_PER_GROUP = 64
"""Trajectories per Parquet row group: what a lazy reader holds at once."""

FORMAT = b"rocknroll.trajectories/1"

SCHEMA = pa.schema(
    [
        ("group", pa.int32()),
        ("group_id", pa.string()),
        ("task_id", pa.string()),
        ("id", pa.string()),
        ("task_kind", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("action_mask", pa.list_(pa.bool_())),
        ("logprobs", pa.list_(pa.float32())),
        ("versions", pa.list_(pa.int32())),
        (
            "turns",
            pa.list_(
                pa.struct(
                    [
                        ("start", pa.int32()),
                        ("end", pa.int32()),
                        ("reward", pa.float64()),
                        ("valid", pa.bool_()),
                        ("state_hash", pa.string()),
                        ("progress", pa.float64()),
                    ]
                )
            ),
        ),
        ("outcome", pa.string()),
        ("success", pa.bool_()),
        ("allowed", pa.list_(pa.list_(pa.int32()))),
        ("error", pa.string()),
        ("timings_s", pa.map_(pa.string(), pa.float64())),
    ],
    metadata={b"format": FORMAT},
)
"""`group` is the group's position in the file; the others are the fields of `Trajectory`."""


class StorageError(Exception):
    """A trajectory file cannot be read; the text names the file and the row group."""


def trajectory_file(folder: Path, iteration: int) -> Path:
    """Where the trajectories of an iteration lie."""
    return folder / f"{iteration:06d}.parquet"


def write_trajectories(folder: Path, iteration: int, groups: Sequence[Group]) -> Path:
    """Write the groups of one iteration to `<folder>/<iteration>.parquet`, atomically; returns the file."""
    return write_groups(trajectory_file(folder, iteration), groups)


def write_groups(path: Path, groups: Sequence[Group]) -> Path:
    """Write groups to a Parquet file, atomically; a group without members is not kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [_to_row(index, group, member) for index, group in enumerate(groups) for member in group.trajectories]
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), partial, row_group_size=ROWS_PER_GROUP, compression="zstd")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def read_groups(path: Path) -> Iterator[Group]:
    """Groups of one file, in the order they were written; reads a row group at a time.

    Raises:
        StorageError: the file is missing, truncated, corrupt or of another kind.
    """
    for _, rows in groupby(_read_rows(path), key=lambda row: int(row[0]["group"])):
        members = list(rows)
        first = members[0][0]
        yield Group(first["group_id"], first["task_id"], tuple(trajectory for _, trajectory in members))


def read_trajectories(folder: Path) -> Iterator[tuple[int, Trajectory]]:
    """(iteration, trajectory) of every file in a folder, oldest first, lazily.

    Raises:
        StorageError: a file is broken.
    """
    for path in sorted(folder.glob("[0-9]*.parquet")):
        for _, trajectory in _read_rows(path):
            yield int(path.stem), trajectory


def _read_rows(path: Path) -> Iterator[tuple[dict[str, Any], Trajectory]]:
    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"{path}: not a readable trajectory file ({_first_line(error)})") from error
    with file:
        if (file.schema_arrow.metadata or {}).get(b"format") != FORMAT:
            raise StorageError(f"{path}: Parquet, but not of format {FORMAT.decode()}: no trajectories of this project")
        for number in range(file.num_row_groups):
            try:
                rows = file.read_row_group(number).to_pylist(maps_as_pydicts="strict")
                yield from ((row, _from_row(row)) for row in rows)
            except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
                raise StorageError(f"{path}, row group {number}: {_first_line(error)}") from error


def _to_row(index: int, group: Group, trajectory: Trajectory) -> dict[str, Any]:
    return {
        "group": index,
        "group_id": group.id,
        "task_id": group.task_id,
        "id": trajectory.id,
        "task_kind": trajectory.task_kind,
        "token_ids": trajectory.token_ids,
        "action_mask": trajectory.action_mask,
        "logprobs": trajectory.logprobs,
        "versions": trajectory.versions,
        "turns": [vars(turn) for turn in trajectory.turns],
        "outcome": trajectory.outcome.value,
        "success": trajectory.success,
        "allowed": None if trajectory.allowed is None else [list(choices) for choices in trajectory.allowed],
        "error": trajectory.error,
        "timings_s": list(trajectory.timings_s.items()),
    }


def _from_row(row: dict[str, Any]) -> Trajectory:
    allowed = row["allowed"]
    return Trajectory(
        id=row["id"],
        group_id=row["group_id"],
        task_id=row["task_id"],
        task_kind=row["task_kind"],
        token_ids=np.array(row["token_ids"], dtype=np.int32),
        action_mask=np.array(row["action_mask"], dtype=np.bool_),
        logprobs=np.array(row["logprobs"], dtype=np.float32),
        versions=np.array(row["versions"], dtype=np.int32),
        turns=tuple(Turn(**turn) for turn in row["turns"]),
        outcome=Outcome(row["outcome"]),
        success=row["success"],
        allowed=None if allowed is None else tuple(tuple(choices) for choices in allowed),
        error=row["error"],
        timings_s=row["timings_s"],
    )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
