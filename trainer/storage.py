"""Trajectories on disk: one Parquet file per iteration, written whole or not at all.

One row is one trajectory; the rows of a group stand together and in order. The columns are those of
`SCHEMA` (docs/trajectories.md explains them). A file appears under its name only when it is complete,
so whatever a killed run leaves behind can be read; pages carry checksums, so what was damaged later
is named and never believed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rocknroll.trainer.trajectory import NO_VERSION, Group, Outcome, Trajectory, Turn

ROWS_PER_GROUP = 64
"""Trajectories per Parquet row group: what a lazy reader holds at once."""

FORMAT = b"rocknroll.trajectories/2"
READABLE = (b"rocknroll.trajectories/1", FORMAT)
"""Files of format 1 lack `cause`, `domain`, `round`, `episode_return` and `oldest_version`."""

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
        ("cause", pa.string()),
        ("domain", pa.string()),
        ("round", pa.string()),
        ("episode_return", pa.float64()),
        ("oldest_version", pa.int32()),
        ("measured", pa.map_(pa.string(), pa.float64())),
    ],
    metadata={b"format": FORMAT},
)
"""`group` is the group's position in the file, `round` the group's `round_kind`; `episode_return` and
`oldest_version` are there for queries; the others are the fields of `Trajectory`."""


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
        table = pa.Table.from_pylist(rows, SCHEMA)
        pq.write_table(table, partial, row_group_size=ROWS_PER_GROUP, compression="zstd", write_page_checksum=True)
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
        trajectories = tuple(trajectory for _, trajectory in members)
        yield Group(first["group_id"], first["task_id"], trajectories, first.get("round", ""))


def stored_ids(path: Path) -> list[str]:
    """Ids of a file's trajectories, in order; every page of every column is read and its checksum compared.

    Raises:
        StorageError: as `read_groups`.
    """
    with _open(path) as file:
        tables = [_row_group(path, file, number) for number in range(file.num_row_groups)]
    return [name for table in tables for name in table["id"].to_pylist()]


class Stored(NamedTuple):
    """A trajectory and where it was learned from."""

    iteration: int
    round_kind: str
    trajectory: Trajectory

    @property
    def staleness(self) -> int | None:
        """Versions that its oldest token was behind the one it was trained at; None when nothing was sampled."""
        oldest = self.trajectory.oldest_version
        return None if oldest == NO_VERSION else self.iteration - 1 - oldest


def read_trajectories(folder: Path) -> Iterator[Stored]:
    """The trajectories of every file in a folder, oldest iteration first, lazily.

    Raises:
        StorageError: a file is broken.
    """
    for path in trajectory_files(folder):
        for row, trajectory in _read_rows(path):
            yield Stored(int(path.stem), row.get("round", ""), trajectory)


def trajectory_files(folder: Path) -> list[Path]:
    """The files of a folder, oldest iteration first."""
    return sorted(folder.glob("[0-9]*.parquet"))


def encode(trajectory: Trajectory) -> bytes:
    """One trajectory as an Arrow record batch of one row of SCHEMA, without the schema."""
    row = _to_row(0, Group(trajectory.group_id, trajectory.task_id, (trajectory,)), trajectory)
    return bytes(pa.RecordBatch.from_pylist([row], SCHEMA).serialize().to_pybytes())


def decode(payload: bytes) -> Trajectory:
    """What `encode` wrote.

    Raises:
        StorageError: it is damaged, or of another format.
    """
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(payload), SCHEMA)
        (row,) = batch.to_pylist(maps_as_pydicts="strict")
        return _from_row(row)
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise StorageError(f"a stored trajectory cannot be read ({_first_line(error)})") from error


def _read_rows(path: Path) -> Iterator[tuple[dict[str, Any], Trajectory]]:
    with _open(path) as file:
        for number in range(file.num_row_groups):
            table = _row_group(path, file, number)
            try:
                rows = table.to_pylist(maps_as_pydicts="strict")
                yield from ((row, _from_row(row)) for row in rows)
            except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
                raise StorageError(f"{path}, row group {number}: {_first_line(error)}") from error


def _open(path: Path) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"{path}: not a readable trajectory file ({_first_line(error)})") from error
    if (file.schema_arrow.metadata or {}).get(b"format") not in READABLE:
        file.close()
        raise StorageError(f"{path}: Parquet, but not of format {FORMAT.decode()}: no trajectories of this project")
    return file


def _row_group(path: Path, file: pq.ParquetFile, number: int) -> pa.Table:
    try:
        return file.read_row_group(number)
    except (OSError, pa.ArrowException) as error:
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
        "measured": list(trajectory.measured.items()),
        "cause": trajectory.cause,
        "domain": trajectory.domain,
        "round": group.round_kind,
        "episode_return": trajectory.reward,
        "oldest_version": trajectory.oldest_version,
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
        measured=row.get("measured") or {},
        cause=row.get("cause", ""),
        domain=row.get("domain", ""),
    )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
