"""A run's folder, live or over. Files are read in one thread of their own, and only what is new in them.

Nothing is written. What a run has not (a ledger, insights, a tokenizer before its first checkpoint) is left out or
refused in words; a file that is broken is an error with its name.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any, TypeVar

from rocknroll.dashboard.episode import episode_of
from rocknroll.dashboard.fleet_source import fleet_facts
from rocknroll.dashboard.snapshot import (
    AlertFacts,
    Description,
    Episode,
    EvaluationFacts,
    EventFacts,
    FleetFacts,
    GroupFacts,
    Row,
    RunFacts,
    Snapshot,
    TrajectoryFacts,
)
from rocknroll.dashboard.source import SourceRefused
from rocknroll.trainer.cli.inspect import decoder
from rocknroll.trainer.errors import RunFolderError
from rocknroll.trainer.file_lock import is_held
from rocknroll.trainer.insights import read_insights
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.rollout.ledger_file import UNDER_WAY, LedgerError, connect, lock_file
from rocknroll.trainer.run_folder import open_run
from rocknroll.trainer.storage import StorageError, Stored, read_groups, trajectory_files
from rocknroll.trainer.trajectory import Group, Trajectory

RECENT = 16
"""Iterations whose median time is the usual one."""
LOCK_S = 2.0
"""Between two looks at the run's lock: a look holds it for a moment."""
_TIMES = ("learner/wait_s", "learner/prepare_s", "learner/train_s", "learner/publish_s")
"""What the time of an iteration consists of."""
FLEET_S = 15.0
"""A picture of the sandboxes that is older is of a run that does not play, or was killed."""
NO_FLEET = "no manager answers here, and the run does not play in sandboxes now"
RUNS_OWN = "this sandbox belongs to `roll train`, which restarts and removes its own; nobody else can use it"
ResultT = TypeVar("ResultT")


class RunSource:
    """The run in the folder `path`.

    Raises:
        RunFolderError: there is no run.
    """

    def __init__(self, path: Path) -> None:
        self._folder = open_run(path)
        self.title = f"run {path.name}"
        self._thread = ThreadPoolExecutor(1, "run-folder")
        self._metrics = _Rows(self._folder.metrics_file)
        self._lists: dict[Path, tuple[list[GroupFacts], list[TrajectoryFacts]]] = {}
        self._recipe: tuple[float, Recipe] | None = None
        self._ledger: sqlite3.Connection | None = None
        self._running = False
        self._lock_looked_s = float("-inf")

    async def snapshot(self) -> Snapshot:
        return await self._in_thread(lambda: Snapshot(time.time(), fleet=self._fleet(), run=self._facts()))

    async def groups(self, limit: int = 500) -> tuple[GroupFacts, ...]:
        return await self._in_thread(lambda: tuple(islice((group for of in self._newest() for group in of[0]), limit)))

    async def trajectories(self, limit: int = 500) -> tuple[TrajectoryFacts, ...]:
        return await self._in_thread(lambda: tuple(islice((one for of in self._newest() for one in of[1]), limit)))

    async def trajectory(self, trajectory_id: str) -> Episode:
        return await self._in_thread(lambda: self._episode(trajectory_id))

    async def describe(self, sandbox_id: str) -> Description:
        return await self._in_thread(lambda: self._description(sandbox_id))

    async def logs(self, sandbox_id: str) -> str:
        raise SourceRefused("what sandboxes of `roll train` print is not kept")

    async def events(self, after: int = 0, limit: int = 1_000) -> tuple[EventFacts, ...]:
        fleet = await self._in_thread(self._fleet)
        found = () if fleet is None else fleet.events
        return tuple(event for event in found if event.seq > after)[-limit:]

    async def restart(self, sandbox_id: str) -> None:
        raise SourceRefused(RUNS_OWN)

    async def remove(self, sandbox_id: str) -> None:
        raise SourceRefused(RUNS_OWN)

    def shell_command(self, sandbox_id: str) -> tuple[str, ...]:
        raise SourceRefused(RUNS_OWN)

    async def close(self) -> None:
        self._thread.submit(self._forget_ledger)
        self._thread.shutdown(wait=False)

    async def _in_thread(self, work: Callable[[], ResultT]) -> ResultT:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except (RunFolderError, StorageError, LedgerError, OSError) as error:
            raise SourceRefused(str(error)) from error

    def _overview(self) -> Mapping[str, Any] | None:
        """What the run shows of its sandboxes; None while it shows nothing, or nothing new."""
        try:
            seen: Mapping[str, Any] = json.loads(self._folder.fleet_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise RunFolderError(f"{self._folder.fleet_file} is no JSON ({error}). Remove it to go on.") from error
        return seen if time.time() - seen["at"] < FLEET_S else None

    def _fleet(self) -> FleetFacts | None:
        seen = self._overview()
        return None if seen is None else fleet_facts(self.title, seen)

    def _description(self, sandbox_id: str) -> Description:
        seen = self._overview()
        rows = [] if seen is None else seen["sandboxes"]
        row = next((row for row in rows if row["id"] == sandbox_id), None)
        if seen is None or row is None:
            raise RunFolderError(NO_FLEET)
        events = [event for event in seen["events"] if event["sandbox"] == sandbox_id]
        return {"begun": "", "turns": [], **row, "spec": {}, "events": events, "output": ""}

    def _facts(self) -> RunFacts:
        folder, recipe = self._folder, self._recipe_now()
        rows = self._metrics.now()
        in_flight, buffered = self._in_ledger()
        evaluations = folder.evaluations()
        return RunFacts(
            name=recipe.name,
            path=str(folder.path),
            state=self._state(len(rows), recipe.learner.iterations),
            iterations=recipe.learner.iterations,
            rows=rows,
            evaluations=tuple(
                EvaluationFacts(
                    row.iteration,
                    row.result.where,
                    row.result.success_rate,
                    row.result.episodes,
                    {kind: cell.success_rate for kind, cell in row.result.by_kind.items()},
                )
                for row in evaluations
            ),
            alerts=tuple(AlertFacts(**one.to_json()) for one in folder.alerts()),
            began=folder.recipe_file.stat().st_mtime,
            updated=self._updated(),
            interval_s=_interval_s(rows),
            staleness_bound=recipe.rollout.async_ratio,
            in_flight=in_flight,
            buffered=buffered,
            batch=recipe.rollout.num_groups * recipe.rollout.group_size,
        )

    def _recipe_now(self) -> Recipe:
        """The recipe, read again when a resumed run has written another."""
        written = self._folder.recipe_file.stat().st_mtime
        if self._recipe is None or self._recipe[0] != written:
            self._recipe = (written, self._folder.recipe())
        return self._recipe[1]

    def _state(self, done: int, planned: int) -> str:
        now_s = time.monotonic()
        if now_s - self._lock_looked_s >= LOCK_S:
            self._running, self._lock_looked_s = is_held(self._folder.path / "run.lock"), now_s
        if self._running:
            return "running"
        return "finished" if self._folder.policy.is_dir() and done >= planned else "stopped"

    def _updated(self) -> float | None:
        newest = trajectory_files(self._folder.trajectories)[-1:]
        files = (self._folder.metrics_file, self._folder.evaluations_file, *newest)
        return max((file.stat().st_mtime for file in files if file.is_file()), default=None)

    def _in_ledger(self) -> tuple[int | None, int | None]:
        """(episodes under way, episodes that wait for the learner)."""
        file = self._folder.ledger
        if not file.is_file() or not file.stat().st_size:
            return None, None
        try:
            if self._ledger is None:
                self._ledger = connect(file, read_only=True)
            playing = self._ledger.execute(f"SELECT COUNT(*) FROM episodes WHERE {UNDER_WAY}").fetchone()
            waiting = self._ledger.execute(
                "SELECT COUNT(*) FROM payloads WHERE id IN (SELECT id FROM episodes WHERE batch IS NULL)"
            ).fetchone()
        except sqlite3.Error as error:
            self._forget_ledger()
            raise RunFolderError(f"{file} cannot be read: {error}") from error
        live = is_held(lock_file(file)) if self._running else False
        return (int(playing[0]) if live else 0), int(waiting[0])

    def _forget_ledger(self) -> None:
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    def _newest(self) -> Iterator[tuple[list[GroupFacts], list[TrajectoryFacts]]]:
        """Groups and trajectories of each file, newest first. A file never changes once it is there."""
        for file in reversed(trajectory_files(self._folder.trajectories)):
            if file not in self._lists:
                groups = list(read_groups(file))
                iteration = int(file.stem)
                self._lists[file] = (
                    [_group(group, iteration) for group in groups],
                    [
                        _facts(Stored(iteration, group.round_kind, one))
                        for group in groups
                        for one in group.trajectories
                    ],
                )
            yield self._lists[file]

    def _episode(self, trajectory_id: str) -> Episode:
        found = next((facts for of in self._newest() for facts in of[1] if facts.id == trajectory_id), None)
        if found is None:
            raise RunFolderError(f"there is no trajectory {trajectory_id} in {self._folder.path} (any more)")
        file = self._folder.trajectories / f"{found.iteration:06d}.parquet"
        stored = next(
            Stored(found.iteration, group.round_kind, one)
            for group in read_groups(file)
            for one in group.trajectories
            if one.id == trajectory_id
        )
        insights = read_insights(self._folder.insights, found.iteration, trajectory_id)
        return episode_of(found, stored, decoder(self._folder), insights, self._recipe_now().credit)


class _Rows:
    """Rows of a growing `metrics.jsonl`; a resumed run may have replaced the file by a shorter one."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._rows: tuple[Row, ...] = ()
        self._identity: tuple[int, int] | None = None
        self._read_bytes = 0

    def now(self) -> tuple[Row, ...]:
        try:
            stat = self._file.stat()
        except FileNotFoundError:
            self._rows, self._identity, self._read_bytes = (), None, 0
            return self._rows
        identity = (stat.st_dev, stat.st_ino)
        if identity != self._identity or stat.st_size < self._read_bytes:
            self._rows, self._identity, self._read_bytes = (), identity, 0
        if stat.st_size > self._read_bytes:
            with self._file.open("rb") as file:
                file.seek(self._read_bytes)
                whole = file.read().rpartition(b"\n")[0]
            if whole:
                self._rows += tuple(self._parsed(line) for line in whole.splitlines() if line.strip())
                self._read_bytes += len(whole) + 1
        return self._rows

    def _parsed(self, line: bytes) -> Row:
        try:
            row: Row = json.loads(line)
            row["iteration"]
        except (ValueError, KeyError, TypeError) as error:
            raise RunFolderError(f"{self._file}: a line is no row of figures ({error}). Remove it to go on.") from error
        return row


def _interval_s(rows: tuple[Row, ...]) -> float | None:
    times = [sum(row[name] for name in _TIMES) for row in rows[-RECENT:] if all(name in row for name in _TIMES)]
    return median(times) if len(times) > 1 else None


def _facts(stored: Stored) -> TrajectoryFacts:
    one = stored.trajectory
    return TrajectoryFacts(
        id=one.id,
        iteration=stored.iteration,
        group=one.group_id,
        task=one.task_id,
        kind=one.task_kind,
        outcome=one.outcome.value,
        success=one.success,
        reward=one.reward,
        turns=len(one.turns),
        tokens=int(one.token_ids.size),
        staleness=stored.staleness,
        cause=one.cause,
        domain=one.domain,
    )


def _group(group: Group, iteration: int) -> GroupFacts:
    members: tuple[Trajectory, ...] = group.trajectories
    rewards = [one.reward for one in members]
    return GroupFacts(
        id=group.id,
        iteration=iteration,
        task=group.task_id,
        kind=members[0].task_kind,
        members=len(members),
        solved=sum(one.success for one in members),
        reward_mean=fmean(rewards),
        reward_std=pstdev(rewards),
        outcomes=Counter(one.outcome.value for one in members),
        round=group.round_kind,
    )
