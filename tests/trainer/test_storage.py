"""Trajectory files: what goes in comes out, and what is broken is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import played
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rocknroll.trainer import storage
from rocknroll.trainer.storage import SCHEMA, StorageError, read_groups, read_trajectories, write_trajectories
from rocknroll.trainer.trajectory import Group, Outcome, Trajectory


def equal(a: Trajectory, b: Trajectory) -> bool:
    return all(
        np.array_equal(left, right) and left.dtype == right.dtype if isinstance(left, np.ndarray) else left == right
        for left, right in zip(vars(a).values(), vars(b).values(), strict=True)
    )


def test_groups_come_back_as_they_were(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    odd = Group(
        "odd",
        "task of odd",
        (
            played.trajectory(rng, "silent", group_id="odd", turns=0, outcome=Outcome.ABORTED),
            played.trajectory(rng, "held", group_id="odd", constrained=True, success=True),
            played.trajectory(rng, "cut", group_id="odd", outcome=Outcome.TRUNCATED),
        ),
    )
    written = (*played.groups(1, 4), odd, *played.groups(1, 1))
    path = write_trajectories(tmp_path, 7, written)
    assert path.name == "000007.parquet"
    back = list(read_groups(path))
    assert [(g.id, g.task_id) for g in back] == [(g.id, g.task_id) for g in written]
    for one, other in zip(back, written, strict=True):
        assert len(one.trajectories) == len(other.trajectories)
        for a, b in zip(one.trajectories, other.trajectories, strict=True):
            assert equal(a, b)


def test_neighbouring_groups_of_one_name_stay_apart(tmp_path: Path) -> None:
    (group,) = played.groups(0, 1)
    assert len(list(read_groups(write_trajectories(tmp_path, 0, (group, group))))) == 2


def test_a_folder_reads_in_order_of_iterations(tmp_path: Path) -> None:
    for iteration in (10, 2):
        write_trajectories(tmp_path, iteration, played.groups(iteration, 1))
    assert [iteration for iteration, _ in read_trajectories(tmp_path)] == [2] * 4 + [10] * 4


def test_reading_is_lazy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "ROWS_PER_GROUP", 4)
    path = write_trajectories(tmp_path, 0, played.groups(0, 3))
    damage(path, row_group=2)
    groups = read_groups(path)
    assert next(groups).id == "0.0"
    with pytest.raises(StorageError, match=r"000000.parquet, row group 2"):
        list(groups)


def damage(path: Path, row_group: int) -> None:
    """Overwrite the data pages of one row group."""
    column = pq.ParquetFile(path).metadata.row_group(row_group).column(5)
    start = column.dictionary_page_offset or column.data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(data)


@pytest.mark.parametrize("keep", [0, 3, 200, -5])
def test_a_truncated_file_names_itself(tmp_path: Path, keep: int) -> None:
    path = write_trajectories(tmp_path, 3, played.groups(0))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(StorageError, match=r"000003.parquet"):
        list(read_groups(path))


def test_a_missing_file_names_itself(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"nowhere.parquet"):
        list(read_groups(tmp_path / "nowhere.parquet"))


def test_parquet_of_another_kind_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"token_ids": [1]}), tmp_path / "other.parquet")
    with pytest.raises(StorageError, match="no trajectories of this project"):
        list(read_groups(tmp_path / "other.parquet"))


def test_a_row_that_breaks_the_invariants_names_its_row_group(tmp_path: Path) -> None:
    path = write_trajectories(tmp_path, 0, played.groups(0, 1))
    rows = pq.read_table(path).to_pylist()
    rows[0]["logprobs"] = [0.0]
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path)
    with pytest.raises(StorageError, match=r"row group 0: ValueError: trajectory 0.0/0: logprobs has shape"):
        list(read_groups(path))


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_trajectories(tmp_path, 0, played.groups(0))
    before = (tmp_path / "000000.parquet").read_bytes()

    def full(table: pa.Table, where: Path, **options: object) -> None:
        where.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(storage.pq, "write_table", full)
    with pytest.raises(OSError, match="disk full"):
        write_trajectories(tmp_path, 0, played.groups(1))
    assert [path.name for path in tmp_path.iterdir()] == ["000000.parquet"]
    assert (tmp_path / "000000.parquet").read_bytes() == before
