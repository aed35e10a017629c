"""Batches lie in their files before anyone trains on them, and come back as they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from recorded import keep, member, take

from rocknroll.trainer.rollout import batch_files
from rocknroll.trainer.rollout.batch_files import BatchFiles
from rocknroll.trainer.rollout.ledger import Ledger
from rocknroll.trainer.storage import StorageError, trajectory_file
from rocknroll.trainer.trajectory import Group


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path / "ledger.sqlite")
    yield opened
    opened.close()


@pytest.fixture
def files(tmp_path: Path, ledger: Ledger) -> BatchFiles:
    return BatchFiles(tmp_path / "trajectories", ledger)


def taken(ledger: Ledger, index: int) -> tuple[Group, ...]:
    """A batch of two groups of two, just taken."""
    groups = [[member(2 * index + g, m) for m in range(2)] for g in range(2)]
    keep(ledger, *(one for group in groups for one in group))
    take(ledger, index, groups)
    return ledger.pending_batches()[-1].groups


def test_a_stored_batch_comes_back_as_it_was(files: BatchFiles, ledger: Ledger) -> None:
    groups = taken(ledger, 0)
    files.write(0, groups)
    files.known_good(0)
    assert not ledger.pending_batches()
    back = files.read(0)
    assert [group.id for group in back] == ["g0", "g1"]
    for ours, theirs in zip(groups, back, strict=True):
        for a, b in zip(ours.trajectories, theirs.trajectories, strict=True):
            assert np.array_equal(a.token_ids, b.token_ids) and np.array_equal(a.logprobs, b.logprobs)


def test_only_what_was_handed_out_counts_as_taken(files: BatchFiles, ledger: Ledger) -> None:
    taken(ledger, 0)
    assert files.taken(0)
    assert not files.taken(1)


@pytest.mark.parametrize("half_done", [False, True])
def test_a_file_that_a_killed_process_did_not_finish_is_written_on_the_next_start(
    files: BatchFiles, ledger: Ledger, tmp_path: Path, half_done: bool
) -> None:
    groups = taken(ledger, 0)
    if half_done:
        files.write(0, groups)
        path = trajectory_file(tmp_path / "trajectories", 1)
        path.write_bytes(path.read_bytes()[:100])
    assert files.recover() == 1
    assert [group.id for group in files.read(0)] == ["g0", "g1"]
    assert files.recover() == 0


def test_a_file_that_does_not_read_back_leaves_the_batch_in_the_ledger(
    files: BatchFiles, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = taken(ledger, 0)
    monkeypatch.setattr(batch_files, "stored_ids", lambda path: [])
    with pytest.raises(StorageError, match="does not hold what was written"):
        files.write(0, groups)
    assert [batch.index for batch in ledger.pending_batches()] == [0]


def test_a_damaged_file_names_the_iteration_that_needs_it(files: BatchFiles, ledger: Ledger, tmp_path: Path) -> None:
    files.write(0, taken(ledger, 0))
    files.known_good(0)
    path = trajectory_file(tmp_path / "trajectories", 1)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(StorageError, match=r"000001.parquet.* repeat iteration 1, .*copy"):
        files.read(0)


def test_a_file_of_another_run_is_not_trained_on(files: BatchFiles, ledger: Ledger, tmp_path: Path) -> None:
    for index in range(2):
        files.write(index, taken(ledger, index))
        files.known_good(index)
    folder = tmp_path / "trajectories"
    trajectory_file(folder, 2).replace(trajectory_file(folder, 1))
    with pytest.raises(StorageError, match="other trajectories than the ledger says"):
        files.read(0)


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ledger = Ledger(None)
    files = BatchFiles(None, ledger)
    files.write(0, taken(ledger, 0))
    files.known_good(0)
    assert not ledger.pending_batches()
    with pytest.raises(StorageError, match="no run folder"):
        files.read(0)
    assert not list(tmp_path.iterdir())
