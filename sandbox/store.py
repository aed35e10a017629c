"""What the fleet remembers: sandboxes, leases and events, in SQLite.

A file (WAL, so that others may read while the fleet writes) or `:memory:`. Events are rows, never
only log lines; the newest `EVENTS_KEPT` stay.
"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

from rocknroll.sandbox.lease import Lease

EVENTS_KEPT = 100_000
PRUNE_EVERY = 1_000
BUSY_TIMEOUT_S = 5.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS sandboxes(
    id TEXT PRIMARY KEY, spec TEXT NOT NULL, state TEXT NOT NULL, generation INTEGER NOT NULL,
    restarts INTEGER NOT NULL, last_error TEXT NOT NULL, updated REAL NOT NULL);
CREATE TABLE IF NOT EXISTS leases(
    token INTEGER PRIMARY KEY, sandbox_id TEXT NOT NULL, owner TEXT NOT NULL, ttl_s REAL NOT NULL,
    granted REAL NOT NULL, ended REAL, outcome TEXT);
CREATE TABLE IF NOT EXISTS events(
    seq INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, sandbox_id TEXT NOT NULL,
    kind TEXT NOT NULL, detail TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS tokens(id INTEGER PRIMARY KEY CHECK (id = 0), last INTEGER NOT NULL);
"""


@dataclass(frozen=True)
class EventRow:
    """One thing that happened, at a wall-clock time (seconds since the epoch)."""

    seq: int
    time: float
    sandbox_id: str
    kind: str
    detail: str


class Store:
    """Not to be shared between threads."""

    def __init__(self, path: str | Path = ":memory:") -> None:
        self._db = sqlite3.connect(str(path), timeout=BUSY_TIMEOUT_S, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(_SCHEMA)
        self._since_prune = 0

    def last_token(self) -> int:
        """The highest fencing token that was ever given out."""
        row = self._db.execute("SELECT last FROM tokens").fetchone()
        return int(row[0]) if row else 0

    def remember_token(self, token: int) -> None:
        """Before a token is used, so that a restarted fleet never gives it out again."""
        self._db.execute("INSERT INTO tokens VALUES(0, ?) ON CONFLICT(id) DO UPDATE SET last = excluded.last", (token,))

    def put_sandbox(
        self, sandbox_id: str, spec: str, state: str, generation: int, restarts: int, last_error: str
    ) -> None:
        row = (sandbox_id, spec, state, generation, restarts, last_error, time.time())
        self._db.execute("INSERT OR REPLACE INTO sandboxes VALUES(?, ?, ?, ?, ?, ?, ?)", row)

    def begin_lease(self, lease: Lease) -> None:
        row = (lease.token, lease.sandbox_id, lease.owner, lease.ttl_s, time.time())
        self._db.execute("INSERT INTO leases(token, sandbox_id, owner, ttl_s, granted) VALUES(?, ?, ?, ?, ?)", row)

    def end_lease(self, token: int, outcome: str) -> None:
        self._db.execute("UPDATE leases SET ended = ?, outcome = ? WHERE token = ?", (time.time(), outcome, token))

    def open_leases(self) -> list[tuple[int, str, str]]:
        """(token, sandbox, owner) of every lease that has not ended."""
        rows = self._db.execute("SELECT token, sandbox_id, owner FROM leases WHERE ended IS NULL ORDER BY token")
        return [(int(token), str(sandbox), str(owner)) for token, sandbox, owner in rows]

    def add_event(self, sandbox_id: str, kind: str, detail: str) -> None:
        row = (time.time(), sandbox_id, kind, detail)
        self._db.execute("INSERT INTO events(time, sandbox_id, kind, detail) VALUES(?, ?, ?, ?)", row)
        self._since_prune += 1
        if self._since_prune >= PRUNE_EVERY:
            self._since_prune = 0
            self._db.execute("DELETE FROM events WHERE seq <= (SELECT MAX(seq) FROM events) - ?", (EVENTS_KEPT,))

    def events(self, after: int = 0, limit: int = 1_000) -> list[EventRow]:
        """Events with a sequence number above `after`, oldest first."""
        rows = self._db.execute("SELECT * FROM events WHERE seq > ? ORDER BY seq LIMIT ?", (after, limit))
        return [EventRow(*row) for row in rows]

    def close(self) -> None:
        self._db.close()
