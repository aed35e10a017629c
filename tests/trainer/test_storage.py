"""Trajectory files: what goes in comes out, and what is broken is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import played
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rocknroll.trainer import storage
from rocknroll.trainer.storage import (
    SCHEMA,
    StorageError,
    decode,
    encode,
    read_groups,
    read_trajectories,
    stored_ids,
    write_trajectories,
)
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
            replace(
                played.trajectory(rng, "silent", group_id="odd", turns=0, outcome=Outcome.INFRA_ERROR),
                cause="env_hung",
                error="EnvHung: no answer",
                domain="kitchen",
            ),
            played.trajectory(rng, "held", group_id="odd", constrained=True, success=True),
            played.trajectory(rng, "cut", group_id="odd", outcome=Outcome.TRUNCATED),
        ),
        "short",
    )
    written = (*played.groups(1, 4), odd, *played.groups(1, 1))
    path = write_trajectories(tmp_path, 7, written)
    assert path.name == "000007.parquet"
    back = list(read_groups(path))
    assert [(g.id, g.task_id, g.round_kind) for g in back] == [(g.id, g.task_id, g.round_kind) for g in written]
    for one, other in zip(back, written, strict=True):
        assert len(one.trajectories) == len(other.trajectories)
        for a, b in zip(one.trajectories, other.trajectories, strict=True):
            assert equal(a, b)


def test_a_single_trajectory_survives_encoding() -> None:
    rng = np.random.default_rng(3)
    for constrained in (False, True):
        one = replace(played.trajectory(rng, "g1.0.0", constrained=constrained), cause="env_error", domain="kitchen")
        assert equal(decode(encode(one)), one)
    with pytest.raises(StorageError, match="stored trajectory cannot be read"):
        decode(encode(one)[:100])


def test_columns_for_queries_say_return_and_age(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    one = played.trajectory(rng, rewards=[0.5, 1.0], turns=2, version=4)
    (row,) = pq.read_table(write_trajectories(tmp_path, 5, [Group("g", "task", (one,))])).to_pylist()
    assert (row["episode_return"], row["oldest_version"]) == (1.5, 4)


def test_a_file_of_the_first_format_reads_with_what_it_lacks_left_empty(tmp_path: Path) -> None:
    later = ("cause", "domain", "round", "episode_return", "oldest_version")
    table = pq.read_table(write_trajectories(tmp_path, 0, played.groups(0, 1))).drop_columns(list(later))
    pq.write_table(table.replace_schema_metadata({b"format": b"rocknroll.trajectories/1"}), tmp_path / "old.parquet")
    (old,), (new,) = read_groups(tmp_path / "old.parquet"), played.groups(0, 1)
    assert old.round_kind == ""
    assert all(equal(a, b) for a, b in zip(old.trajectories, new.trajectories, strict=True))


def test_ids_are_read_in_order_and_only_from_an_undamaged_file(tmp_path: Path) -> None:
    path = write_trajectories(tmp_path, 0, played.groups(0, 1))
    assert stored_ids(path) == [f"0.0/{member}" for member in range(4)]
    flip_a_bit(path)
    with pytest.raises(StorageError, match=r"000000.parquet, row group 0"):
        stored_ids(path)


def flip_a_bit(path: Path) -> None:
    """Change what is stored in a way that no reader notices without checksums."""
    metadata = pq.ParquetFile(path).metadata
    columns = [metadata.row_group(0).column(i) for i in range(metadata.num_columns)]
    (column,) = (c for c in columns if c.path_in_schema.startswith("logprobs"))
    whole, before = path.read_bytes(), pq.read_table(path)
    first = column.dictionary_page_offset or column.data_page_offset
    for at in range(first, first + column.total_compressed_size):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            if not pq.read_table(path).equals(before):
                return
        except (OSError, pa.ArrowException):
            continue
    raise AssertionError("every flipped bit was noticed")


def test_neighbouring_groups_of_one_name_stay_apart(tmp_path: Path) -> None:
    (group,) = played.groups(0, 1)
    assert len(list(read_groups(write_trajectories(tmp_path, 0, (group, group))))) == 2


def test_a_folder_reads_in_order_of_iterations(tmp_path: Path) -> None:
    for iteration in (10, 2):
        write_trajectories(tmp_path, iteration, played.groups(iteration, 1))
    assert [stored.iteration for stored in read_trajectories(tmp_path)] == [2] * 4 + [10] * 4


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
