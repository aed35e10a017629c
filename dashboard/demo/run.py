"""The recorded run, as if it went on: iterations appear one after the other, at the pace at which they were learned."""

from __future__ import annotations

import tempfile
import zipfile
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from rocknroll.dashboard.demo.record import NAME, RECORDING
from rocknroll.dashboard.run_source import RunSource
from rocknroll.dashboard.snapshot import Episode, GroupFacts, Row, RunFacts, TrajectoryFacts

BEGINS_AT = 0.6
"""Share of the run's time that is over when the demo begins: curves have a shape by then."""
TIMES = ("learner/wait_s", "learner/prepare_s", "learner/train_s", "learner/publish_s")
"""What the time of an iteration consists of."""
ALL = 1 << 30


class RecordedRun:
    """`clock` gives seconds since the epoch; the demo began at `began`."""

    def __init__(self, clock: Callable[[], float], began: float) -> None:
        self._clock = clock
        self._unpacked = tempfile.TemporaryDirectory(prefix="rock-demo-")
        path = Path(self._unpacked.name) / NAME
        with zipfile.ZipFile(RECORDING) as archive:
            archive.extractall(path)
        self._source = RunSource(path)
        self._began = began
        self._whole: RunFacts | None = None

    async def facts(self, finished: Callable[[float], int]) -> RunFacts:
        """The run as far as it is now; `finished` says how many episodes have been played since a moment."""
        whole, ends = await self._read()
        now = self._clock()
        done = bisect_right(ends, now)
        last = ends[done - 1] if done else self._began
        running = done < len(ends)
        batch = whole.batch or 0
        return replace(
            whole,
            path=f"runs/{NAME}",
            state="running" if running else "finished",
            rows=whole.rows[:done],
            evaluations=tuple(one for one in whole.evaluations if one.iteration <= self._shown(whole.rows, done)),
            began=ends[0] - _took_s(whole.rows[0]),
            updated=last,
            buffered=min(finished(last), batch) if running else 0,
        )

    async def trajectories(self) -> tuple[TrajectoryFacts, ...]:
        """Those of iterations that are over, newest first."""
        done = await self._iteration()
        return tuple(one for one in await self._source.trajectories(ALL) if one.iteration <= done)

    async def groups(self) -> tuple[GroupFacts, ...]:
        """Those of iterations that are over, newest first."""
        done = await self._iteration()
        return tuple(one for one in await self._source.groups(ALL) if one.iteration <= done)

    async def trajectory(self, trajectory_id: str) -> Episode:
        """One of them, turn by turn."""
        return await self._source.trajectory(trajectory_id)

    async def scripts(self) -> tuple[TrajectoryFacts, ...]:
        """All that were recorded, for the callers of the fleet to play again."""
        return await self._source.trajectories(ALL)

    async def close(self) -> None:
        """Give back files. Idempotent."""
        await self._source.close()
        self._unpacked.cleanup()

    async def _iteration(self) -> int:
        whole, ends = await self._read()
        return self._shown(whole.rows, bisect_right(ends, self._clock()))

    def _shown(self, rows: Sequence[Row], done: int) -> int:
        return int(rows[done - 1]["iteration"]) if done else 0

    async def _read(self) -> tuple[RunFacts, list[float]]:
        """The whole run, and when each iteration ends in the demo."""
        if self._whole is None:
            self._whole = (await self._source.snapshot()).run
        assert self._whole is not None
        took_s = list(accumulate(_took_s(row) for row in self._whole.rows))
        return self._whole, [self._began + end_s - BEGINS_AT * took_s[-1] for end_s in took_s]


def _took_s(row: Row) -> float:
    return sum(row[name] for name in TIMES)
