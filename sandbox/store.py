"""What the fleet remembers: sandboxes, leases, events and alerts, in SQLite.

A file (mode 0600, for it holds the secrets of running sandboxes; WAL, so that others may read while
the fleet writes) or `:memory:`. A fleet that starts on the file of one that was killed finds its
sandboxes and leases here. Events are rows, never only log lines; the newest `EVENTS_KEPT` stay.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocknroll.sandbox.alerts.rule import Alert
from rocknroll.sandbox.errors import StoreFailed
from rocknroll.sandbox.lease import Lease, Tokens

EVENTS_KEPT = 100_000
LEASES_KEPT = 100_000
"""By token; open ones always stay."""
ALERTS_KEPT = 10_000
"""That are over."""
PRUNE_EVERY = 1_000
BUSY_TIMEOUT_S = 5.0
LAYOUT = 2
"""Raised when a table changes; a file of another layout is refused."""

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS sandboxes(
    id TEXT PRIMARY KEY, pool TEXT NOT NULL, node TEXT NOT NULL, spec TEXT NOT NULL, state TEXT NOT NULL,
    generation INTEGER NOT NULL, restarts INTEGER NOT NULL, last_error TEXT NOT NULL, record TEXT,
    updated REAL NOT NULL);
CREATE TABLE IF NOT EXISTS leases(
    token INTEGER PRIMARY KEY, sandbox_id TEXT NOT NULL, owner TEXT NOT NULL, process TEXT NOT NULL,
    ttl_s REAL NOT NULL, granted REAL NOT NULL, deadline REAL NOT NULL, ended REAL, outcome TEXT);
CREATE INDEX IF NOT EXISTS leases_open ON leases(sandbox_id) WHERE ended IS NULL;
CREATE TABLE IF NOT EXISTS events(
    seq INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, sandbox_id TEXT NOT NULL,
    kind TEXT NOT NULL, detail TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS alerts(
    seq INTEGER PRIMARY KEY AUTOINCREMENT, rule TEXT NOT NULL, subject TEXT NOT NULL, severity TEXT NOT NULL,
    since REAL NOT NULL, text TEXT NOT NULL, resolved REAL, UNIQUE(rule, subject, since));
CREATE TABLE IF NOT EXISTS fleet(
    row INTEGER PRIMARY KEY CHECK (row = 0), id TEXT NOT NULL, last_token INTEGER NOT NULL);
PRAGMA user_version = {LAYOUT};
"""


@dataclass(frozen=True)
class EventRow:
    """One thing that happened, at a wall-clock time (seconds since the epoch)."""

    seq: int
    time: float
    sandbox_id: str
    kind: str
    detail: str


@dataclass(frozen=True)
class SandboxRow:
    """One sandbox as it was last seen. `record` finds its instance again; None when there is none."""

    id: str
    pool: str
    node: str
    spec: str
    """Fingerprint of the specification its instance was made by."""
    state: str
    generation: int
    restarts: int
    last_error: str
    record: Mapping[str, Any] | None


@dataclass(frozen=True)
class LeaseRow:
    """One lease; times are wall-clock seconds since the epoch. `ended` and `outcome` are None while it is open."""

    token: int
    sandbox_id: str
    owner: str
    process: str
    """`owner.identity` of the process that holds it; empty where that is not known."""
    ttl_s: float
    granted: float
    deadline: float
    ended: float | None
    outcome: str | None


class Store:
    """Not to be shared between threads.

    Raises:
        StoreFailed: by every method; the file cannot be read or written (a full disk, say), or is none of ours.
    """

    def __init__(self, path: str | Path = ":memory:") -> None:
        self.path = str(path)
        try:
            if self.path != ":memory:":
                os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            self._db = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise StoreFailed(f"cannot open the store {self.path}: {error}") from None
        (layout,) = self._run("PRAGMA user_version").fetchone()
        tables = self._run("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
        if layout != LAYOUT and tables:
            self._db.close()
            raise StoreFailed(
                f"the store {self.path} has layout {layout}, this version reads {LAYOUT}: end the fleet that wrote it "
                "with the version that started it (`rock down`), or move the file away"
            )
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise StoreFailed(f"cannot write the store {self.path}: {error}") from None
        self._run("INSERT OR IGNORE INTO fleet VALUES(0, ?, 0)", (uuid.uuid4().hex[:12],))
        self._since_prune = 0
        last = int(self._run("SELECT last_token FROM fleet").fetchone()[0])
        self.tokens = Tokens(last, self._remember_token)
        """One sequence for all pools on this store; a fleet that starts on it again goes on from there."""

    @property
    def fleet_id(self) -> str:
        """The mark that everything of this fleet carries, also after its manager was killed and started again."""
        return str(self._run("SELECT id FROM fleet").fetchone()[0])

    def _remember_token(self, token: int) -> None:
        self._run("UPDATE fleet SET last_token = ?", (token,))

    def put_sandbox(self, row: SandboxRow) -> None:
        record = None if row.record is None else json.dumps(dict(row.record))
        fields = (row.id, row.pool, row.node, row.spec, row.state, row.generation, row.restarts, row.last_error)
        self._run(
            "INSERT OR REPLACE INTO sandboxes VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*fields, record, time.time())
        )

    def forget_sandbox(self, sandbox_id: str) -> None:
        """A slot that the fleet does not have any more."""
        self._run("DELETE FROM sandboxes WHERE id = ?", (sandbox_id,))

    def sandboxes(self, pool: str) -> list[SandboxRow]:
        """The sandboxes of a pool as they were last seen."""
        names = ("id", "pool", "node", "spec", "state", "generation", "restarts", "last_error")
        rows = self._run(f"SELECT record, {', '.join(names)} FROM sandboxes WHERE pool = ? ORDER BY id", (pool,))
        return [
            SandboxRow(record=record and json.loads(record), **dict(zip(names, seen, strict=True)))
            for record, *seen in rows
        ]

    def begin_lease(self, lease: Lease, deadline: float, process: str = "") -> None:
        row = (lease.token, lease.sandbox_id, lease.owner, process, lease.ttl_s, time.time(), deadline)
        self._run("INSERT INTO leases VALUES(?, ?, ?, ?, ?, ?, ?, NULL, NULL)", row)

    def extend_lease(self, token: int, ttl_s: float, deadline: float) -> None:
        self._run("UPDATE leases SET ttl_s = ?, deadline = ? WHERE token = ?", (ttl_s, deadline, token))

    def end_lease(self, token: int, outcome: str) -> None:
        """The first outcome stays."""
        self._run(
            "UPDATE leases SET ended = ?, outcome = ? WHERE token = ? AND ended IS NULL", (time.time(), outcome, token)
        )

    def lease(self, token: int) -> LeaseRow | None:
        """The lease that was given this token, over or not."""
        row = self._run("SELECT * FROM leases WHERE token = ?", (token,)).fetchone()
        return None if row is None else LeaseRow(*row)

    def open_leases(self) -> list[LeaseRow]:
        """Every lease that has not ended, in the order they were granted."""
        return [LeaseRow(*row) for row in self._run("SELECT * FROM leases WHERE ended IS NULL ORDER BY token")]

    def add_event(self, sandbox_id: str, kind: str, detail: str) -> None:
        row = (time.time(), sandbox_id, kind, detail)
        self._run("INSERT INTO events(time, sandbox_id, kind, detail) VALUES(?, ?, ?, ?)", row)
        self._since_prune += 1
        if self._since_prune >= PRUNE_EVERY:
            self._since_prune = 0
            self._run("DELETE FROM events WHERE seq <= (SELECT MAX(seq) FROM events) - ?", (EVENTS_KEPT,))
            self._run(
                "DELETE FROM leases WHERE ended IS NOT NULL AND token <= (SELECT last_token FROM fleet) - ?",
                (LEASES_KEPT,),
            )
            self._run(
                "DELETE FROM alerts WHERE resolved IS NOT NULL AND seq <= (SELECT MAX(seq) FROM alerts) - ?",
                (ALERTS_KEPT,),
            )

    def events(self, after: int = 0, limit: int = 1_000) -> list[EventRow]:
        """Events with a sequence number above `after`, oldest first."""
        rows = self._run("SELECT * FROM events WHERE seq > ? ORDER BY seq LIMIT ?", (after, limit))
        return [EventRow(*row) for row in rows]

    def history(self, sandbox_id: str | None = None, limit: int = 50) -> list[EventRow]:
        """The newest events, of one sandbox or of all, oldest first."""
        query = "SELECT * FROM events WHERE sandbox_id = ? OR ? IS NULL ORDER BY seq DESC LIMIT ?"
        return [EventRow(*row) for row in self._run(query, (sandbox_id, sandbox_id, limit))][::-1]

    def put_alert(self, alert: Alert) -> None:
        """An alert that was raised or resolved."""
        row = (alert.rule, alert.subject, alert.severity, alert.since, alert.text, alert.resolved)
        self._run(
            "INSERT INTO alerts(rule, subject, severity, since, text, resolved) VALUES(?, ?, ?, ?, ?, ?)"
            " ON CONFLICT(rule, subject, since) DO UPDATE SET resolved = excluded.resolved",
            row,
        )

    def alerts(self, resolved: int) -> list[Alert]:
        """Every open alert and the newest so many that are over, oldest first."""
        rows = self._run(
            "SELECT rule, subject, severity, since, text, resolved FROM alerts WHERE resolved IS NULL OR seq IN"
            " (SELECT seq FROM alerts WHERE resolved IS NOT NULL ORDER BY seq DESC LIMIT ?) ORDER BY seq",
            (resolved,),
        )
        return [Alert(*row) for row in rows]

    def close(self) -> None:
        self._db.close()

    def _run(self, statement: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        try:
            return self._db.execute(statement, values)
        except sqlite3.Error as error:
            raise StoreFailed(f"the store {self.path} cannot be used: {error}") from None
