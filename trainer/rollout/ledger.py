"""What became of every episode, written down before anything else happens with it.

SQLite in the run folder, or in memory without one. The events of one call of the scheduler and the state it is in
then are one transaction, with finished trajectories as they are: whenever the process is killed, a restored scheduler
goes on exactly there, and nothing finished is lost or trained twice. Commits survive the death of the process, not
of the machine (WAL with synchronous=NORMAL: after a power cut the last ones may be missing, the rest is whole).
Trajectories leave the ledger when the Parquet file of their batch is known to be good.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import Any

from rocknroll.trainer.rollout.events import (
    Aborted,
    BatchTaken,
    Event,
    Failed,
    GroupDropped,
    GroupFiltered,
    GroupRequeued,
    Kept,
    Started,
    Surplus,
)
from rocknroll.trainer.rollout.ledger_file import BROKEN, UNDER_WAY, LedgerError, connect, take_lock
from rocknroll.trainer.rollout.scheduler import Batch
from rocknroll.trainer.storage import StorageError, decode, encode
from rocknroll.trainer.trajectory import Group, Trajectory


@dataclass(frozen=True)
class Restored:
    """Where a run stood when it ended or was killed."""

    state: Mapping[str, Any]
    """What the scheduler's `state_dict` returned last."""
    trajectories: Mapping[str, Trajectory]
    """Finished and not yet in a batch, by id."""
    interrupted: int
    """Episodes that were being played."""


class Ledger:
    """The one writer of a run's ledger. Not to be shared between threads.

    Raises:
        LedgerError: by every method; the file is broken, of another program or layout, or held by another process.
    """

    def __init__(self, path: Path | None) -> None:
        self._name = "the ledger" if path is None else str(path)
        self._lock = None if path is None else take_lock(path)
        try:
            self._db = connect(path)
        except LedgerError:
            self._release()
            raise

    def record(self, events: Sequence[Event], state: Mapping[str, Any]) -> None:
        """Write down what happened and where the scheduler stands now, all or nothing."""

        def write() -> None:
            for event in events:
                _write(event, self._db)
            self._db.execute("INSERT OR REPLACE INTO state VALUES(0, ?)", (json.dumps(state),))

        self._transaction(write)

    def restore(self) -> Restored | None:
        """Where the run stood, or None if it is new. What was being played then counts as interrupted from here on."""
        row = self._guarded(lambda: self._db.execute("SELECT scheduler FROM state").fetchone())
        if row is None:
            return None
        interrupted = self._interrupt()
        query = "SELECT id, trajectory FROM payloads WHERE id IN (SELECT id FROM episodes WHERE batch IS NULL)"
        payloads: list[tuple[str, bytes]] = self._guarded(lambda: self._db.execute(query).fetchall())
        return Restored(json.loads(row[0]), {name: self._decode(body) for name, body in payloads}, interrupted)

    def pending_batches(self) -> Sequence[Batch]:
        """Batches that were taken and whose file is not known to be good yet, in order."""
        query = "SELECT batch, round, episodes FROM batches WHERE stored = 0 ORDER BY seq"
        rows = self._guarded(lambda: self._db.execute(query).fetchall())
        return [Batch(batch, self._groups(round_kind, json.loads(ids))) for batch, round_kind, ids in rows]

    def batch_ids(self, batch: int) -> list[str] | None:
        """Ids of a taken batch's episodes in order, or None if it has not been taken."""
        query = "SELECT episodes FROM batches WHERE batch = ?"
        row = self._guarded(lambda: self._db.execute(query, (batch,)).fetchone())
        return None if row is None else [name for group in json.loads(row[0]) for name in group]

    def batch_written(self, batch: int) -> None:
        """Its file is there and good: its trajectories need not be kept here any more."""
        ids = [(name,) for name in self.batch_ids(batch) or ()]

        def write() -> None:
            self._db.execute("UPDATE batches SET stored = 1 WHERE batch = ?", (batch,))
            self._db.executemany("DELETE FROM payloads WHERE id = ?", ids)

        self._transaction(write)

    def close(self) -> None:
        """Ends the run's time with this process: what is being played is interrupted. Safe to call twice."""
        with suppress(LedgerError):  # a broken ledger was told where it was used; restore() does this, too
            self._interrupt()
        self._db.close()
        self._release()

    def _interrupt(self) -> int:
        statement = f"UPDATE episodes SET interrupted = interrupted + 1 WHERE {UNDER_WAY}"
        return int(self._guarded(lambda: self._db.execute(statement).rowcount))

    def _groups(self, round_kind: Any, ids: Sequence[Sequence[str]]) -> tuple[Group, ...]:
        groups = []
        for members in ids:
            trajectories = tuple(self._payload(name) for name in members)
            groups.append(Group(trajectories[0].group_id, trajectories[0].task_id, trajectories, round_kind))
        return tuple(groups)

    def _payload(self, name: str) -> Trajectory:
        query = "SELECT trajectory FROM payloads WHERE id = ?"
        row = self._guarded(lambda: self._db.execute(query, (name,)).fetchone())
        if row is None:
            raise LedgerError(f"{self._name}: the trajectory {name} of a batch that was taken is missing. {BROKEN}")
        return self._decode(row[0])

    def _decode(self, payload: bytes) -> Trajectory:
        try:
            return decode(payload)
        except StorageError as error:
            raise LedgerError(f"{self._name}: {error}. {BROKEN}") from error

    def _transaction(self, write: Callable[[], None]) -> None:
        def atomically() -> None:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                write()
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

        self._guarded(atomically)

    def _guarded(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except sqlite3.Error as error:
            raise LedgerError(f"{self._name} cannot be used: {error}. {BROKEN}") from error

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()


@singledispatch
def _write(event: Event, db: sqlite3.Connection) -> None:
    raise TypeError(f"the ledger knows no event {type(event).__name__}")


@_write.register
def _(event: Started, db: sqlite3.Connection) -> None:
    episode = event.episode
    row = (episode.id, episode.group, episode.member, episode.attempt, episode.task.domain, episode.task.id)
    db.execute(
        "INSERT INTO episodes(id, group_index, member, attempt, domain, task, version, starts) VALUES(?,?,?,?,?,?,?,1)"
        " ON CONFLICT(id) DO UPDATE SET starts = starts + 1, version = excluded.version",
        (*row, event.version),
    )


@_write.register
def _(event: Kept, db: sqlite3.Connection) -> None:
    db.execute("UPDATE episodes SET kept = kept + 1 WHERE id = ?", (event.episode.id,))
    db.execute("INSERT OR REPLACE INTO payloads VALUES(?, ?)", (event.episode.id, encode(event.trajectory)))


@_write.register
def _(event: Failed, db: sqlite3.Connection) -> None:
    change = "UPDATE episodes SET failed = failed + 1, cause = ?, retried = ? WHERE id = ?"
    db.execute(change, (event.trajectory.cause, event.retried, event.episode.id))


@_write.register
def _(event: Aborted, db: sqlite3.Connection) -> None:
    change = f"UPDATE episodes SET aborted = aborted + 1, cause = ? WHERE id = ? AND {UNDER_WAY}"
    db.execute(change, (event.why.value, event.episode.id))


@_write.register
def _(event: Surplus, db: sqlite3.Connection) -> None:
    db.execute("UPDATE episodes SET surplus = surplus + 1 WHERE id = ?", (event.episode.id,))


@_write.register
def _(event: GroupRequeued, db: sqlite3.Connection) -> None:
    _set_back(db, "requeued", event.group, event.why.value, event.discarded)


@_write.register
def _(event: GroupFiltered, db: sqlite3.Connection) -> None:
    _set_back(db, "filtered", event.group, "filtered", event.discarded)


@_write.register
def _(event: GroupDropped, db: sqlite3.Connection) -> None:
    _set_back(db, "dropped", event.group, "dropped", event.discarded)


@_write.register
def _(event: BatchTaken, db: sqlite3.Connection) -> None:
    row = (event.batch, event.round_kind, json.dumps(event.episodes))
    db.execute("INSERT INTO batches(batch, round, episodes) VALUES(?, ?, ?)", row)
    members = [(event.batch, name) for group in event.episodes for name in group]
    db.executemany("UPDATE episodes SET batch = ? WHERE id = ?", members)


def _set_back(db: sqlite3.Connection, kind: str, group: int, why: str, discarded: Sequence[str]) -> None:
    db.execute("INSERT INTO setbacks(kind, group_index, why) VALUES(?, ?, ?)", (kind, group, why))
    db.executemany("UPDATE episodes SET discarded = ? WHERE id = ?", [(why, name) for name in discarded])
    db.executemany("DELETE FROM payloads WHERE id = ?", [(name,) for name in discarded])
