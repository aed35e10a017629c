"""The ledger: what was recorded is there after a kill, and what is no ledger is left alone."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from recorded import finished, keep
from recorded import member as episode

from rocknroll.trainer.rollout import ledger_file
from rocknroll.trainer.rollout.events import (
    Aborted,
    BatchTaken,
    Failed,
    GroupRequeued,
    Kept,
    Started,
    Surplus,
    Why,
)
from rocknroll.trainer.rollout.ledger import Ledger, LedgerError
from rocknroll.trainer.rollout.ledger_file import connect
from rocknroll.trainer.storage import encode
from rocknroll.trainer.trajectory import Outcome


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    opened = Ledger(path)
    yield opened
    opened.close()


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(path) as db:
        return db.execute(query).fetchall()


def test_a_new_run_has_nothing_to_restore(ledger: Ledger) -> None:
    assert ledger.restore() is None


def test_what_was_finished_is_restored_with_the_state(path: Path, ledger: Ledger) -> None:
    ledger.record([Started(episode(), 3)], {"cursor": 1})
    ledger.record([Kept(episode(), finished(episode()))], {"cursor": 2})
    ledger.close()
    restored = Ledger(path).restore()
    assert restored is not None
    assert restored.state == {"cursor": 2}
    assert list(restored.trajectories) == ["g0.0.0"]
    assert np.array_equal(restored.trajectories["g0.0.0"].logprobs, finished(episode()).logprobs)


def test_a_call_is_recorded_whole_or_not_at_all(ledger: Ledger) -> None:
    ledger.record([Started(episode(), 0)], {"cursor": 1})
    with pytest.raises(TypeError):
        ledger.record([Kept(episode(), finished(episode())), object()], {"cursor": 2})  # type: ignore[list-item]
    restored = ledger.restore()
    assert restored is not None
    assert (restored.state, restored.trajectories) == ({"cursor": 1}, {})


def test_what_was_being_played_counts_as_interrupted_once(ledger: Ledger, path: Path) -> None:
    keep(ledger, episode(number=0))
    ledger.record([Started(episode(number=1), 0)], {})
    restored = ledger.restore()
    assert restored is not None
    assert restored.interrupted == 1
    again = ledger.restore()
    assert again is not None
    assert again.interrupted == 0
    ledger.record([Started(episode(number=1), 0)], {})
    assert rows(path, "SELECT starts, interrupted FROM episodes WHERE id = 'g0.1.0'") == [(2, 1)]


def test_closing_interrupts_what_is_being_played(ledger: Ledger, path: Path) -> None:
    ledger.record([Started(episode(), 0)], {})
    ledger.close()
    assert rows(path, "SELECT starts, interrupted FROM episodes") == [(1, 1)]


def test_a_batch_stays_here_until_its_file_is_known_to_be_good(ledger: Ledger) -> None:
    pairs = [(episode(group, 0), episode(group, 1)) for group in (3, 1)]
    keep(ledger, *(one for pair in pairs for one in pair))
    ledger.record([BatchTaken(0, tuple(tuple(one.id for one in pair) for pair in pairs), "long")], {})
    (batch,) = ledger.pending_batches()
    assert batch.index == 0
    assert [group.id for group in batch.groups] == ["g3", "g1"]
    assert batch.groups[0].task_id == "task 3"
    assert batch.groups[0].round_kind == "long"
    assert [t.id for t in batch.groups[1].trajectories] == ["g1.0.0", "g1.1.0"]
    ledger.batch_written(0)
    assert not ledger.pending_batches()
    assert ledger.batch_ids(0) == ["g3.0.0", "g3.1.0", "g1.0.0", "g1.1.0"]
    assert ledger.batch_ids(1) is None


def test_a_stored_batch_takes_no_room_here(ledger: Ledger, path: Path) -> None:
    keep(ledger, episode(0), episode(1))
    ledger.record([BatchTaken(0, (("g0.0.0",),))], {})
    ledger.batch_written(0)
    assert rows(path, "SELECT id FROM payloads") == [("g1.0.0",)]


def test_a_taken_batch_is_not_restored_as_buffered(ledger: Ledger) -> None:
    keep(ledger, episode(0), episode(1))
    ledger.record([BatchTaken(0, (("g0.0.0",),))], {})
    restored = ledger.restore()
    assert restored is not None
    assert list(restored.trajectories) == ["g1.0.0"]


def test_what_a_requeued_group_had_finished_is_thrown_away_and_says_why(ledger: Ledger, path: Path) -> None:
    keep(ledger, episode(0, 0))
    ledger.record([Started(episode(0, 1), 0)], {})
    ledger.record([Aborted(episode(0, 1), Why.STALE), GroupRequeued(0, Why.STALE, ("g0.0.0",))], {})
    restored = ledger.restore()
    assert restored is not None
    assert not restored.trajectories
    assert rows(path, "SELECT id, aborted, discarded, cause FROM episodes") == [
        ("g0.0.0", 0, "stale", ""),
        ("g0.1.0", 1, "", "stale"),
    ]


def test_a_loss_keeps_its_cause(ledger: Ledger, path: Path) -> None:
    ledger.record([Started(episode(), 0)], {})
    lost = finished(episode(), Outcome.INFRA_ERROR, "env_hung")
    ledger.record([Failed(episode(), lost, retried=True)], {})
    assert rows(path, "SELECT failed, cause, retried FROM episodes") == [(1, "env_hung", 1)]


@pytest.mark.parametrize("started", [False, True])
def test_an_episode_that_was_not_being_played_does_not_end_when_it_is_cut_off(
    ledger: Ledger, path: Path, started: bool
) -> None:
    if started:
        ledger.record([Started(episode(), 0)], {})
        ledger.restore()
    ledger.record([Aborted(episode(), Why.STALE)], {})
    assert rows(path, "SELECT starts, interrupted, aborted FROM episodes") == ([(1, 1, 0)] if started else [])


def test_a_late_finish_after_an_abort_is_one_end(ledger: Ledger, path: Path) -> None:
    ledger.record([Started(episode(), 0)], {})
    ledger.record([Aborted(episode(), Why.REDUNDANT)], {})
    ledger.record([Surplus(episode())], {})
    restored = ledger.restore()
    assert restored is not None
    assert restored.interrupted == 0


def test_without_a_folder_it_lives_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ledger = Ledger(None)
    keep(ledger, episode())
    ledger.close()
    assert not list(tmp_path.iterdir())


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from test_ledger import Ledger, episode, keep, Started
ledger = Ledger(Path(sys.argv[1]))
keep(ledger, episode(0))
ledger.record([Started(episode(1), 0)], {"cursor": 7})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_leaves_everything_it_recorded(path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), str(Path(__file__).parent)], env=environment, timeout=60, check=False
    )
    assert killed.returncode == -9
    ledger = Ledger(path)
    restored = ledger.restore()
    assert restored is not None
    assert (restored.state, list(restored.trajectories), restored.interrupted) == ({"cursor": 7}, ["g0.0.0"], 1)
    ledger.close()


def test_what_a_killed_writer_left_half_done_does_not_keep_anyone_from_reading(path: Path) -> None:
    half_done = f"""import os, signal, sqlite3
db = sqlite3.connect({str(path)!r}, isolation_level=None)
db.execute("PRAGMA cache_size = 1")
db.execute("CREATE TABLE t(x)")
db.execute("BEGIN")
db.executemany("INSERT INTO t VALUES(?)", [("x" * 1000,) for _ in range(100)])
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", half_done], check=False).returncode == -signal.SIGKILL
    assert path.with_name(f"{path.name}-journal").stat().st_size > 0
    with pytest.raises(LedgerError, match="another program"):  # read as far as to see whose it is
        connect(path, read_only=True)


def test_a_reader_cannot_write(ledger: Ledger, path: Path) -> None:
    db = connect(path, read_only=True)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        db.execute("DELETE FROM episodes")
    db.close()


def test_a_ledger_is_made_whole_or_not_at_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ledger_file._SCHEMA
    monkeypatch.setattr(ledger_file, "_SCHEMA", whole.partition("CREATE TABLE IF NOT EXISTS batches")[0] + "no SQL;")
    with pytest.raises(LedgerError):
        Ledger(path)
    assert rows(path, "SELECT name FROM sqlite_master") == []
    monkeypatch.setattr(ledger_file, "_SCHEMA", whole)
    ledger = Ledger(path)
    assert ledger.restore() is None
    ledger.close()


def test_a_second_writer_is_refused_by_name(ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_file, "PREDECESSOR_TIMEOUT_S", 0.0)
    with pytest.raises(LedgerError, match=f"written by process {os.getpid()}"):
        Ledger(path)
    ledger.close()
    Ledger(path).close()


@pytest.mark.parametrize("content", [b"no database at all, but long enough to be taken for one" * 40, b"short"])
def test_a_file_of_another_kind_is_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(LedgerError, match=r"ledger.sqlite is damaged, locked or no ledger"):
        Ledger(path)
    assert path.read_bytes() == content


def test_a_database_of_another_program_is_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE recipes(name)")
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="another program"):
        Ledger(path)
    assert path.read_bytes() == before


def test_a_ledger_of_another_layout_is_left_alone(path: Path) -> None:
    Ledger(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(LedgerError, match="layout 99"):
        Ledger(path)


def test_a_truncated_ledger_is_named(path: Path) -> None:
    ledger = Ledger(path)
    keep(ledger, *(episode(group) for group in range(40)))
    ledger.close()
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(LedgerError, match=r"ledger.sqlite .*damaged"):
        Ledger(path)


def test_a_ledger_with_a_damaged_page_is_named(path: Path) -> None:
    ledger = Ledger(path)
    keep(ledger, *(episode(group) for group in range(40)))
    ledger.close()
    data = bytearray(path.read_bytes())
    page = int.from_bytes(data[16:18], "big")
    (root,) = rows(path, "SELECT rootpage FROM sqlite_master WHERE name = 'episodes'")[0]
    data[(int(str(root)) - 1) * page + 8 : int(str(root)) * page] = b"\xff" * (page - 8)
    path.write_bytes(data)
    with pytest.raises(LedgerError, match=r"ledger.sqlite is damaged"):
        Ledger(path)


def test_a_locked_database_is_an_error_that_says_so(
    path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.close()
    monkeypatch.setattr(ledger_file, "BUSY_TIMEOUT_S", 0.0)
    ledger = Ledger(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match="locked"):
        ledger.record([Started(episode(), 0)], {})
    other.close()
    ledger.close()


def test_recording_costs_little(ledger: Ledger) -> None:
    """CPU time of one finished episode beside that of encoding it: a transaction is no more than a few times that."""
    episodes = [episode(group) for group in range(50)]
    done = [finished(one) for one in episodes]
    for one in episodes:
        ledger.record([Started(one, 0)], {})
    began = time.process_time()
    for one, trajectory in zip(episodes, done, strict=True):
        ledger.record([Kept(one, trajectory)], {})
    recorded = time.process_time() - began
    began = time.process_time()
    for trajectory in done:
        encode(trajectory)
    assert recorded < 8 * (time.process_time() - began)
