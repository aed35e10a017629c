"""Does the ledger balance? Every episode that was ever started is somewhere, once.

Counted from three records that are written apart from one another: the ledger (by the rollout process), the Parquet
files (by it, too, but later) and `metrics.jsonl` (by the learner). What is lost or there twice is found by comparing
them, so a fault in any of the three shows. Reads only; also while the run goes on, and after it was killed.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocknroll.trainer.errors import RunFolderError
from rocknroll.trainer.file_lock import is_held
from rocknroll.trainer.rollout.ledger_file import UNDER_WAY, LedgerError, connect, lock_file
from rocknroll.trainer.rollout.scheduler import kept_episodes
from rocknroll.trainer.run_folder import RunFolder
from rocknroll.trainer.storage import stored_ids, trajectory_file

SHOWN = 4
"""Ids that a problem names."""


@dataclass(frozen=True)
class Audit:
    """Episodes of a run by what became of them. They balance when nothing is in `problems`."""

    started: int
    """Times an episode was started; one that was interrupted is started again under its own id."""
    completed: int
    trained: int
    """Of the completed: in a batch that the learner has trained on."""
    pending: int
    """Of the completed: in a batch that waits for the learner."""
    buffered: int
    """Of the completed: in no batch yet."""
    discarded: Mapping[str, int]
    """Of the completed: thrown away with their group, by why."""
    aborted: Mapping[str, int]
    """Cut off while they were being played, by why."""
    infra_error: Mapping[str, int]
    """Lost to infrastructure, by cause."""
    retried: int
    """Of those: played again."""
    interrupted: int
    """Cut off by the end of the process that played them."""
    playing: int
    """Being played now."""
    requeued: int
    """Groups that were set back, to be played anew."""
    lost: int
    duplicated: int
    problems: tuple[str, ...]
    """What does not balance, in words."""

    @property
    def balanced(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """What `roll inspect --ledger --json` prints."""
        counts = {name: dict(value) if isinstance(value, Mapping) else value for name, value in vars(self).items()}
        counts["aborted"], counts["aborted_by_why"] = sum(self.aborted.values()), dict(self.aborted)
        return {"balanced": self.balanced, **counts, "problems": list(self.problems)}


def audit(folder: RunFolder) -> Audit:
    """Compare the ledger of a run with what lies beside it.

    Raises:
        RunFolderError: the run has no ledger.
        LedgerError: the ledger cannot be read.
        StorageError: a trajectory file is broken.
    """
    rows = folder.metrics()  # first, because it can only grow meanwhile
    live = is_held(lock_file(folder.ledger))
    book = _read(folder.ledger) if folder.ledger.is_file() else None
    if book is None:
        raise RunFolderError(
            f"{folder.path} has no ledger: the run was made before there were any, was trained offline, or has not"
            " begun to play."
        )
    files = {batch: stored_ids(trajectory_file(folder.trajectories, batch + 1)) for batch in book.stored}
    return _balance(book, files, rows, live=live)


@dataclass
class _Book:
    """What the ledger says, at one moment."""

    episodes: dict[str, sqlite3.Row]
    batches: list[tuple[int, list[str]]]
    """(batch, ids), in the order they were taken."""
    stored: list[int]
    """Batches whose file is known to be good."""
    payloads: set[str]
    kept_by_scheduler: set[str]
    requeued: int


@dataclass
class _Findings:
    """Ids that are not where they should be, and what else is odd."""

    lost: set[str] = field(default_factory=set)
    duplicated: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def tell(self, what: str, ids: Iterable[str]) -> set[str]:
        found = set(ids)
        if found:
            some = sorted(found)[:SHOWN]
            self.problems.append(f"{what}: {', '.join(some)}{', …' if len(found) > len(some) else ''}")
        return found


def _read(path: Path) -> _Book | None:
    """None: its process was killed before there was anything in it."""
    db = connect(path, read_only=True)
    db.row_factory = sqlite3.Row
    try:
        db.execute("BEGIN")  # one moment: a live run goes on writing
        if db.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
            return None
        query = f"SELECT *, {UNDER_WAY} AS under_way FROM episodes"
        episodes = {row["id"]: row for row in db.execute(query)}
        taken = db.execute("SELECT batch, episodes, stored FROM batches ORDER BY seq").fetchall()
        payloads = {row["id"] for row in db.execute("SELECT id FROM payloads")}
        state = db.execute("SELECT scheduler FROM state").fetchone()
        (requeued,) = db.execute("SELECT COUNT(*) FROM setbacks WHERE kind = 'requeued'").fetchone()
    except sqlite3.Error as error:
        raise LedgerError(f"{path} cannot be read: {error}") from error
    finally:
        db.close()
    return _Book(
        episodes,
        [(row["batch"], [name for group in json.loads(row["episodes"]) for name in group]) for row in taken],
        [row["batch"] for row in taken if row["stored"]],
        payloads,
        kept_episodes(json.loads(state[0])) if state is not None else set(),
        requeued,
    )


def _balance(
    book: _Book, files: Mapping[int, list[str]], metrics: Sequence[Mapping[str, float]], *, live: bool
) -> Audit:
    findings = _Findings()
    trained = Counter(int(row["iteration"]) - 1 for row in metrics)
    kept = {name: row for name, row in book.episodes.items() if row["kept"]}
    batch_of = {name: batch for batch, ids in book.batches for name in ids}
    discarded = {name for name, row in kept.items() if row["discarded"]}
    buffered = kept.keys() - batch_of.keys() - discarded
    _find_lost(book, files, batch_of, buffered, findings)
    _find_duplicated(book, files, trained, discarded, findings)
    _find_unknown(book, files, metrics, findings)
    rows = book.episodes.values()
    under_way = sum(row["under_way"] for row in rows)
    interrupted = sum(row["interrupted"] for row in rows)
    trained_ids = {name for name, batch in batch_of.items() if trained[batch]}
    return Audit(
        started=sum(row["starts"] for row in rows),
        completed=sum(row["kept"] for row in rows),
        trained=len(trained_ids),
        pending=len(batch_of.keys() - trained_ids),
        buffered=len(buffered),
        discarded=_by(row["discarded"] for row in kept.values() if row["discarded"]),
        aborted=_by(row["cause"] for row in rows for _ in range(row["aborted"])),
        infra_error=_by(row["cause"] for row in rows for _ in range(row["failed"])),
        retried=sum(row["retried"] for row in rows),
        interrupted=interrupted if live else interrupted + under_way,
        playing=under_way if live else 0,
        requeued=book.requeued,
        lost=len(findings.lost),
        duplicated=len(findings.duplicated),
        problems=tuple(findings.problems),
    )


def _find_lost(
    book: _Book, files: Mapping[int, list[str]], batch_of: Mapping[str, int], buffered: set[str], found: _Findings
) -> None:
    there = {batch: set(ids) for batch, ids in files.items()}
    gone = (n for n, batch in batch_of.items() if n not in there.get(batch, ()) and n not in book.payloads)
    found.lost |= found.tell("in a batch, and neither in its file nor in the ledger", gone)
    found.lost |= found.tell("finished, in no batch, and their tokens are gone", buffered - book.payloads)
    found.lost |= found.tell("finished, and the scheduler does not know of them", buffered - book.kept_by_scheduler)
    found.lost |= found.tell("known to the scheduler, and not buffered", book.kept_by_scheduler - buffered)


def _find_duplicated(
    book: _Book, files: Mapping[int, list[str]], trained: Counter[int], discarded: set[str], found: _Findings
) -> None:
    repeated = (name for name, row in book.episodes.items() if row["kept"] > 1)
    found.duplicated |= found.tell("finished more than once", repeated)
    in_batches = Counter(name for _, ids in book.batches for name in ids)
    found.duplicated |= found.tell("in more than one batch", (n for n, times in in_batches.items() if times > 1))
    found.duplicated |= found.tell("thrown away, and in a batch all the same", discarded & in_batches.keys())
    in_files = Counter(name for ids in files.values() for name in ids)
    found.duplicated |= found.tell("stored more than once", (n for n, times in in_files.items() if times > 1))
    again = (name for batch, ids in book.batches if trained[batch] > 1 for name in ids)
    found.duplicated |= found.tell("trained on twice, says metrics.jsonl", again)


def _find_unknown(
    book: _Book, files: Mapping[int, list[str]], metrics: Sequence[Mapping[str, float]], found: _Findings
) -> None:
    ids_of = dict(book.batches)
    strangers = (name for batch, ids in files.items() for name in ids if name not in ids_of[batch])
    found.tell("in the file of a batch that the ledger does not have them in", strangers)
    unfinished = (name for ids in ids_of.values() for name in ids if not _kept(book, name))
    found.tell("in a batch, and never finished", unfinished)
    ends = ("kept", "failed", "aborted", "interrupted", "under_way")
    odd = (name for name, row in book.episodes.items() if row["starts"] != sum(row[end] for end in ends))
    found.tell("started and ended a different number of times", odd)
    never = (f"iteration {row['iteration']:g}" for row in metrics if row["iteration"] - 1 not in ids_of)
    found.tell("in metrics.jsonl, and its batch was never taken", never)
    found.tell("trained on another number of trajectories than its batch has", _short(ids_of, metrics))


def _short(ids_of: Mapping[int, list[str]], metrics: Sequence[Mapping[str, float]]) -> Iterator[str]:
    for row in metrics:
        received = row.get("batch/trajectories", 0) + row.get("batch/dropped_trajectories", 0)
        if received and received != len(ids_of.get(int(row["iteration"]) - 1, ())):
            yield f"iteration {row['iteration']:g} ({received:g})"


def _kept(book: _Book, name: str) -> bool:
    return name in book.episodes and bool(book.episodes[name]["kept"])


def _by(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))
