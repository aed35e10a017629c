"""The dashboard: how long a refresh stops its event loop, and what a refresh costs the manager.

At 100, 1,000 and 5,000 rows a tenth of the sandboxes changes between two refreshes; the time that the loop's callbacks
take until the screen has settled is compared with that of Textual's own table, cleared and filled again with the same
cells. A real manager with process sandboxes (1,000; 100 with --quick) is asked for all that a refresh shows and, in
turn, for what `rock ps` shows; then the dashboard looks at it twice a second while sandboxes are leased and given back.
"""

from __future__ import annotations

import reporting  # isort: skip  (first: it mends the import path)

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich.text import Text
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widgets import DataTable

from rocknroll.dashboard.app import Dashboard, Seen
from rocknroll.dashboard.fleet_source import FleetSource
from rocknroll.dashboard.layouts import SANDBOXES
from rocknroll.dashboard.snapshot import EVENTS, FleetFacts, LeaseFacts, PoolFacts, SandboxFacts, Snapshot
from rocknroll.dashboard.source import SourceAway
from rocknroll.dashboard.verdict import judge
from rocknroll.sandbox.client import AsyncClient, Client
from rocknroll.sandbox.state_folder import StateFolder

ROWS = (100, 1_000, 5_000)
CHANGED = 10
"""One of so many sandboxes changes between two refreshes."""
SCREEN = (160, 50)
NOW = 1_790_000_000.0
START_S = 600.0
LOOK_S = 0.5
"""Between two looks at the real manager."""
LEASED = 20


class Nobody:
    """A source that never has anything: what is shown comes from the benchmark."""

    title = "benchmark"

    async def snapshot(self) -> Snapshot:
        raise SourceAway("nothing is asked here")

    async def close(self) -> None:
        pass


class Busy:
    """Time of the callbacks of the running loop, by a clock.

    `time.thread_time` leaves out what else the machine does; `time.perf_counter` counts it, and waits for the GIL.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self.total_s = 0.0
        self.longest_s = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        run = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            began_s = self._clock()
            run(handle)
            took_s = self._clock() - began_s
            self.total_s += took_s
            self.longest_s = max(self.longest_s, took_s)

        asyncio.Handle._run = timed  # type: ignore[method-assign]
        try:
            yield
        finally:
            asyncio.Handle._run = run  # type: ignore[method-assign]


class FilledTable(App[None]):
    """Textual's table with the same columns."""

    def compose(self) -> ComposeResult:
        yield DataTable[Text]()

    def on_mount(self) -> None:
        for column in SANDBOXES.columns:
            if column.shown:
                self.query_one(DataTable).add_column(column.title, width=column.width, key=column.key)

    def fill(self, snapshot: Snapshot) -> None:
        assert snapshot.fleet is not None
        table = self.query_one(DataTable)
        table.clear()
        shown = [column for column in SANDBOXES.columns if column.shown]
        for one in snapshot.fleet.sandboxes:
            table.add_row(*(Text(column.cell(one, snapshot.at).text) for column in shown), key=one.id)


def snapshots(rows: int, count: int) -> Iterator[Snapshot]:
    """As they follow one another: state, CPU and lease of a tenth differ, at other places each time."""
    found = [_sandbox(number) for number in range(rows)]
    for turn in range(count):
        for number in range(turn % CHANGED, rows, CHANGED):
            leased = found[number].lease is None
            lease = LeaseFacts(f"g{turn}.{number}", turn, NOW + 60) if leased else None
            state = "LEASED" if leased else "READY"
            found[number] = replace(found[number], state=state, cpu=0.1 * (turn % 9), lease=lease)
        states = {state: sum(one.state == state for one in found) for state in ("READY", "LEASED")}
        pool = PoolFacts("box", "process", rows, None, states)
        yield Snapshot(NOW, FleetFacts("benchmark", NOW - 60, (pool,), tuple(found)))


def _sandbox(number: int) -> SandboxFacts:
    return SandboxFacts(f"box-{number}", "box", "READY", node="node-0", pid=number, since=NOW - number)


async def settled(pilot: Pilot[None]) -> None:
    await pilot.pause()
    await pilot.pause()


async def refreshes(rows: int, count: int) -> tuple[float, float]:
    """Median milliseconds of a refresh: of all callbacks, and of the longest one."""
    app = Dashboard(Nobody(), interval_s=3_600.0, clock=lambda: NOW)  # type: ignore[arg-type]
    async with app.run_test(size=SCREEN) as pilot:
        await pilot.press("2")
        took = []
        for snapshot in snapshots(rows, count + 1):
            busy = Busy()
            with busy.watching():
                app.post_message(Seen(snapshot, judge(snapshot)))
                await settled(pilot)
            took.append((busy.total_s * 1e3, busy.longest_s * 1e3))
        return median(total for total, _ in took[1:]), median(longest for _, longest in took[1:])


async def rewrites(rows: int, count: int) -> float:
    """Median milliseconds of filling Textual's table anew."""
    app = FilledTable()
    async with app.run_test(size=SCREEN) as pilot:
        took = []
        for snapshot in snapshots(rows, count + 1):
            busy = Busy()
            with busy.watching():
                app.call_later(app.fill, snapshot)
                await settled(pilot)
            took.append(busy.total_s * 1e3)
        return median(took[1:])


@contextmanager
def manager(sandboxes: int) -> Iterator[Path]:
    """A manager of its own, all of whose sandboxes are READY; gives its socket."""
    with tempfile.TemporaryDirectory(prefix="b-") as folder:
        file, state = Path(folder) / "fleet.yaml", Path(folder) / "state"
        file.write_text(f"pools:\n  box: {{size: {sandboxes}, reuse: reset, health: {{interval_s: 600}}}}\n")
        rock = [sys.executable, "-m", "rocknroll.sandbox.cli"]
        up = [*rock, "up", "-f", str(file), "--state", str(state), "--wait", "--timeout", str(START_S)]
        subprocess.run(up, check=True, timeout=2 * START_S, stderr=subprocess.DEVNULL)
        try:
            yield StateFolder(state).service()
        finally:
            subprocess.run([*rock, "down", "--state", str(state)], check=True, stderr=subprocess.DEVNULL)


def api_ms(address: Path, requests: int) -> tuple[float, float]:
    """Median milliseconds of (a whole refresh, what `rock ps` asks for), in turn."""
    took: dict[str, list[float]] = {"overview": [], "ps": []}
    with Client(address) as client:
        for _ in range(requests):
            for name, ask in (("overview", lambda: client.overview(EVENTS)), ("ps", client.snapshot)):
                began_s = time.perf_counter()
                ask()
                took[name].append((time.perf_counter() - began_s) * 1e3)
    return median(took["overview"]), median(took["ps"])


async def live(address: Path, count: int) -> list[float]:
    """For each of `count` refreshes of the dashboard on a manager: milliseconds for which its loop stood still at most.

    By the wall's clock. Between two refreshes `LEASED` sandboxes change hands.
    """
    app = Dashboard(FleetSource(address), interval_s=LOOK_S)
    stood = []
    async with AsyncClient(address) as client, app.run_test(size=SCREEN) as pilot:
        await pilot.press("2")
        for _ in range(count):
            leases = [await client.lease("box", owner="benchmark") for _ in range(LEASED)]
            before, busy = app.seen, Busy(time.perf_counter)
            with busy.watching():
                while app.seen is before:
                    await asyncio.sleep(LOOK_S / 10)
                await settled(pilot)
            stood.append(busy.longest_s * 1e3)
            for lease in leases:
                await lease.release()
    await app.source.close()
    return stood


async def tables(count: int) -> tuple[dict[str, float], dict[str, Any]]:
    ratios, figures = {}, {}
    for rows in ROWS:
        total_ms, longest_ms = await refreshes(rows, count)
        rewrite_ms = await rewrites(rows, max(2, count // 4))
        ratios[str(rows)] = total_ms / rewrite_ms
        figures |= {
            f"refresh_{rows}_ms": round(total_ms, 2),
            f"longest_callback_{rows}_ms": round(longest_ms, 2),
            f"rewrite_{rows}_ms": round(rewrite_ms, 2),
        }
    return ratios, figures


def main() -> int:
    """Measure the tables, then the manager."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="fewer refreshes, and 100 sandboxes instead of 1,000")
    arguments = parser.parse_args()
    ratios, figures = asyncio.run(tables(6 if arguments.quick else 40))
    sandboxes = 100 if arguments.quick else 1_000
    with manager(sandboxes) as address:
        overview_ms, ps_ms = api_ms(address, 10 if arguments.quick else 50)
        stood_ms = asyncio.run(live(address, 6 if arguments.quick else 40))
    figures |= {
        "sandboxes": sandboxes,
        "overview_ms": round(overview_ms, 2),
        "ps_ms": round(ps_ms, 2),
        "live_longest_callback_ms": round(median(stood_ms), 2),
        "live_longest_callback_p90_ms": round(quantiles(stood_ms, n=10)[-1], 2),
    }
    reporting.emit(
        "dashboard", {"refresh_to_rewrite": ratios, "overview_to_ps": overview_ms / ps_ms}, figures, arguments.json
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
