"""The file behind the ledger: its tables, who may write it, and how it is told from what is no ledger.

Opening changes nothing that is not ours: a damaged file, another program's database or another layout is an error.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from rocknroll.trainer.file_lock import FileHeld, FileLock

APPLICATION_ID = 0x726F6C6C
"""Marks an SQLite file as a ledger of this project."""
LAYOUT = 1
"""Raised when a table or the format of trajectories changes; a ledger of another layout is refused."""
BUSY_TIMEOUT_S = 10.0
PREDECESSOR_TIMEOUT_S = 60.0
"""How long the rollout process of a killed run may take to end: it reclaims its sandboxes first."""

UNDER_WAY = "starts > kept + failed + aborted + interrupted"
"""Of an episode: it was started and has not ended since. (A late finish after an abort, `surplus`, ends nothing.)"""

BROKEN = "What is in it was left as it is; restore the run folder from a copy, or start the run under another name"

_SCHEMA = f"""
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS episodes(
    id TEXT PRIMARY KEY, group_index INTEGER NOT NULL, member INTEGER NOT NULL, attempt INTEGER NOT NULL,
    domain TEXT NOT NULL, task TEXT NOT NULL, version INTEGER NOT NULL,
    starts INTEGER NOT NULL DEFAULT 0, kept INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0,
    aborted INTEGER NOT NULL DEFAULT 0, surplus INTEGER NOT NULL DEFAULT 0, interrupted INTEGER NOT NULL DEFAULT 0,
    cause TEXT NOT NULL DEFAULT '', retried INTEGER NOT NULL DEFAULT 0, discarded TEXT NOT NULL DEFAULT '',
    batch INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS payloads(id TEXT PRIMARY KEY, trajectory BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS setbacks(
    seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, group_index INTEGER NOT NULL, why TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS batches(
    seq INTEGER PRIMARY KEY, batch INTEGER NOT NULL, round TEXT NOT NULL, episodes TEXT NOT NULL,
    stored INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS state(row INTEGER PRIMARY KEY CHECK (row = 0), scheduler TEXT NOT NULL);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {LAYOUT};
COMMIT;
"""
"""All or nothing: of a process that was killed here the next one finds an empty file, and no half of a ledger."""


class LedgerError(Exception):
    """The ledger cannot be used; the text says which file, why, and what to do. Nothing was overwritten."""


def connect(path: Path | None, *, read_only: bool = False) -> sqlite3.Connection:
    """Open a ledger, in memory without a path; its file and tables are made unless `read_only`.

    Raises:
        LedgerError: it cannot be opened, is damaged, or was not written by this version of this program.
    """
    source = ":memory:" if path is None else f"{path.resolve().as_uri()}?mode={'rw' if read_only else 'rwc'}"
    try:
        db = sqlite3.connect(source, uri=path is not None, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    except sqlite3.Error as error:
        raise LedgerError(f"{path} cannot be opened: {error}") from error
    try:
        if read_only:
            # Not mode=ro: what a killed writer left half done must be rolled back before anything can be read.
            db.execute("PRAGMA query_only = ON")
        _check(db, path)
        if not read_only:
            db.executescript(_SCHEMA)
    except sqlite3.Error as error:
        db.close()
        raise LedgerError(f"{path} is damaged, locked or no ledger: {error}. {BROKEN}") from error
    except LedgerError:
        db.close()
        raise
    return db


def take_lock(ledger: Path) -> FileLock:
    """What the writer of a ledger holds; waits for the rollout process of a run that was killed just now.

    Raises:
        LedgerError: another process goes on writing it.
    """
    try:
        return FileLock(lock_file(ledger), wait_s=PREDECESSOR_TIMEOUT_S)
    except FileHeld as held:
        raise LedgerError(
            f"{ledger} is being written by process {held.pid}, the rollout process of another `roll train` on this run."
            " Wait until it has ended, or end it"
        ) from held
    except OSError as error:
        raise LedgerError(f"{ledger} cannot be locked: {error}") from error


def lock_file(ledger: Path) -> Path:
    """A file of its own: opening and closing the database's would drop the locks that SQLite holds on it."""
    return ledger.with_suffix(".lock")


def _check(db: sqlite3.Connection, path: Path | None) -> None:
    (tables,) = db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    if not tables:
        return
    (application,) = db.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise LedgerError(f"{path} is a database of another program. Move it out of the run folder")
    (layout,) = db.execute("PRAGMA user_version").fetchone()
    if layout != LAYOUT:
        raise LedgerError(
            f"{path} has layout {layout}, and this version reads {LAYOUT}: go on with the version that began the run"
        )
    (health,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if health != "ok":
        raise LedgerError(f"{path} is damaged: {health}. {BROKEN}")
