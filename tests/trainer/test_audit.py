"""The ledger's balance: everything is somewhere once, and whatever is not is found."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from recorded import NOTHING_OPEN, finished, keep, member, take, trained

from rocknroll.trainer.audit import Audit, audit
from rocknroll.trainer.errors import RunFolderError
from rocknroll.trainer.rollout.batch_files import BatchFiles
from rocknroll.trainer.rollout.events import (
    Aborted,
    Failed,
    GroupDropped,
    GroupFiltered,
    GroupRequeued,
    Started,
    Surplus,
    Why,
)
from rocknroll.trainer.rollout.ledger import Ledger
from rocknroll.trainer.run_folder import RunFolder
from rocknroll.trainer.storage import SCHEMA, StorageError, trajectory_file
from rocknroll.trainer.trajectory import Outcome


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path)
    trained(made, 1)
    return made


@pytest.fixture
def ledger(folder: RunFolder) -> Iterator[Ledger]:
    """Batch 0, trained on, and batch 1, which waits, of one group of two each."""
    opened = Ledger(folder.ledger)
    files = BatchFiles(folder.trajectories, opened)
    for batch in range(2):
        pair = [member(batch, number) for number in range(2)]
        keep(opened, *pair)
        take(opened, batch, [pair])
        files.recover()
    yield opened
    opened.close()


def tamper(folder: RunFolder, statement: str) -> None:
    with sqlite3.connect(folder.ledger) as db:
        assert db.execute(statement).rowcount > 0


def assert_found(found: Audit, *, lost: int = 0, duplicated: int = 0, says: str) -> None:
    assert (found.lost, found.duplicated) == (lost, duplicated)
    assert not found.balanced
    assert any(says in problem for problem in found.problems), found.problems


def test_an_honest_run_balances(folder: RunFolder, ledger: Ledger) -> None:
    found = audit(folder)
    assert found.balanced, found.problems
    assert (found.started, found.completed, found.trained, found.pending) == (4, 4, 2, 2)
    assert (found.lost, found.duplicated) == (0, 0)


def test_a_batch_whose_file_is_not_there_yet_is_pending(folder: RunFolder, ledger: Ledger) -> None:
    keep(ledger, member(2))
    take(ledger, 2, [[member(2)]])
    found = audit(folder)
    assert found.balanced, found.problems
    assert found.pending == 3


def test_what_no_batch_has_taken_is_buffered(folder: RunFolder, ledger: Ledger) -> None:
    keep(ledger, member(2), state={"open": [{"index": 2, "kept": [0], "attempts": [0, 0]}]})
    found = audit(folder)
    assert found.balanced, found.problems
    assert found.buffered == 1


def test_every_way_out_is_counted_by_its_reason(folder: RunFolder, ledger: Ledger) -> None:
    lost = finished(member(5, 0), Outcome.INFRA_ERROR, "env_hung")
    keep(ledger, member(6), member(7), member(8))
    for number in range(3):
        ledger.record([Started(member(5, number), 1)], NOTHING_OPEN)
    ledger.record([Failed(member(5, 0), lost, retried=True)], NOTHING_OPEN)
    ledger.record([Aborted(member(5, 1), Why.REDUNDANT), Surplus(member(5, 1))], NOTHING_OPEN)
    ledger.record([GroupRequeued(6, Why.STALE, ("g6.0.0",)), GroupFiltered(7, ("g7.0.0",))], NOTHING_OPEN)
    ledger.record([GroupDropped(8, ("g8.0.0",))], NOTHING_OPEN)
    found = audit(folder)
    assert found.balanced, found.problems
    assert found.infra_error == {"env_hung": 1}
    assert (found.aborted, found.retried, found.requeued) == ({"redundant": 1}, 1, 1)
    assert found.discarded == {"dropped": 1, "filtered": 1, "stale": 1}
    assert found.playing == 1
    assert found.started == found.completed + 1 + 1 + found.playing
    printed = found.to_json()
    assert (printed["aborted"], printed["aborted_by_why"]) == (1, {"redundant": 1})


def test_what_a_dead_process_was_playing_counts_as_interrupted(folder: RunFolder, ledger: Ledger) -> None:
    ledger.record([Started(member(5), 1)], NOTHING_OPEN)
    assert (audit(folder).playing, audit(folder).interrupted) == (1, 0)
    ledger._lock.release()  # type: ignore[union-attr]  # as the kernel does it when the process is killed
    assert (audit(folder).playing, audit(folder).interrupted) == (0, 1)


def test_an_interrupted_episode_is_started_again_and_still_balances(folder: RunFolder, ledger: Ledger) -> None:
    ledger.record([Started(member(5), 1)], NOTHING_OPEN)
    ledger.restore()
    ledger.record([Started(member(5), 1)], NOTHING_OPEN)
    found = audit(folder)
    assert found.balanced, found.problems
    assert (found.started, found.interrupted, found.playing) == (6, 1, 1)


def test_a_trajectory_that_is_in_no_file_is_lost(folder: RunFolder, ledger: Ledger) -> None:
    path = trajectory_file(folder.trajectories, 1)
    pq.write_table(pq.read_table(path).slice(0, 1).cast(SCHEMA), path)
    assert_found(audit(folder), lost=1, says="neither in its file nor in the ledger: g0.1.0")


def test_a_buffered_trajectory_without_tokens_is_lost(folder: RunFolder, ledger: Ledger) -> None:
    keep(ledger, member(2), state={"open": [{"index": 2, "kept": [0], "attempts": [0]}]})
    tamper(folder, "DELETE FROM payloads")
    assert_found(audit(folder), lost=1, says="their tokens are gone: g2.0.0")


def test_a_trajectory_that_the_scheduler_forgot_is_lost(folder: RunFolder, ledger: Ledger) -> None:
    keep(ledger, member(2))
    assert_found(audit(folder), lost=1, says="the scheduler does not know of them: g2.0.0")


def test_a_trajectory_that_only_the_scheduler_knows_is_lost(folder: RunFolder, ledger: Ledger) -> None:
    ledger.record([], {"open": [{"index": 9, "kept": [1], "attempts": [0, 3]}]})
    assert_found(audit(folder), lost=1, says="known to the scheduler, and not buffered: g9.1.3")


def test_a_batch_that_was_taken_twice_is_found(folder: RunFolder, ledger: Ledger) -> None:
    take(ledger, 2, [[member(0, 0)]])
    assert audit(folder).duplicated == 1
    assert "in more than one batch: g0.0.0" in audit(folder).problems


def test_a_trajectory_in_two_files_is_found(folder: RunFolder, ledger: Ledger) -> None:
    first, second = (trajectory_file(folder.trajectories, iteration) for iteration in (1, 2))
    second.write_bytes(first.read_bytes())
    found = audit(folder)
    assert (found.lost, found.duplicated) == (2, 2)
    assert any(problem.startswith("stored more than once: g0.0.0, g0.1.0") for problem in found.problems)


def test_an_iteration_that_was_trained_twice_is_found(folder: RunFolder, ledger: Ledger) -> None:
    trained(folder, 1)
    assert_found(audit(folder), duplicated=2, says="trained on twice")


def test_a_trajectory_that_was_thrown_away_and_trained_on_is_found(folder: RunFolder, ledger: Ledger) -> None:
    ledger.record([GroupRequeued(0, Why.STALE, ("g0.0.0",))], NOTHING_OPEN)
    assert_found(audit(folder), duplicated=1, says="thrown away, and in a batch all the same")


def test_an_episode_that_finished_twice_is_found(folder: RunFolder, ledger: Ledger) -> None:
    tamper(folder, "UPDATE episodes SET kept = 2 WHERE id = 'g0.0.0'")
    assert_found(audit(folder), duplicated=1, says="finished more than once")


def test_an_episode_that_ended_without_a_start_is_found(folder: RunFolder, ledger: Ledger) -> None:
    tamper(folder, "UPDATE episodes SET starts = 0 WHERE id = 'g0.0.0'")
    assert_found(audit(folder), says="a different number of times: g0.0.0")


def test_a_batch_that_was_trained_on_and_never_taken_is_found(folder: RunFolder, ledger: Ledger) -> None:
    trained(folder, 7)
    assert_found(audit(folder), says="its batch was never taken: iteration 7")


def test_a_learner_that_got_fewer_trajectories_than_the_batch_has_is_found(folder: RunFolder, ledger: Ledger) -> None:
    folder.metrics_file.write_text('{"iteration": 1.0, "batch/trajectories": 1.0, "batch/dropped_trajectories": 0.0}\n')
    assert_found(audit(folder), says="another number of trajectories than its batch has: iteration 1 (1)")


def test_a_damaged_file_is_named(folder: RunFolder, ledger: Ledger) -> None:
    path = trajectory_file(folder.trajectories, 1)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(StorageError, match=r"000001.parquet"):
        audit(folder)


@pytest.mark.parametrize("made", [False, True])
def test_a_run_without_a_ledger_says_so(tmp_path: Path, made: bool) -> None:
    if made:  # and its process killed before there was a table in it
        RunFolder(tmp_path).ledger.touch()
    with pytest.raises(RunFolderError, match="has no ledger"):
        audit(RunFolder(tmp_path))
