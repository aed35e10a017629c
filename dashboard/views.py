"""The views of the main screen, one for each tab. Each draws what it is shown; none keeps a clock or asks for itself,
but for lists that are too long for a snapshot, which a worker fetches when they have changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, cast

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from rocknroll.dashboard.columns import ItemT, Layout
from rocknroll.dashboard.grid import Grid
from rocknroll.dashboard.layouts import ALERTS, CURVES, EVENTS, GROUPS, SANDBOXES, TRAJECTORIES, Curve
from rocknroll.dashboard.overview import Overview
from rocknroll.dashboard.pages import EpisodePage, TextPage, alert_text
from rocknroll.dashboard.plot import curve
from rocknroll.dashboard.snapshot import AlertFacts, EventFacts, GroupFacts, SandboxFacts, Snapshot, TrajectoryFacts
from rocknroll.dashboard.source import SourceAway, SourceRefused
from rocknroll.dashboard.text import one_line
from rocknroll.dashboard.view import View, say

if TYPE_CHECKING:
    from rocknroll.dashboard.app import Dashboard

EVENTS_FETCHED = 1_000
EVENTS_KEPT = 5_000


class TableView(View, Generic[ItemT]):
    """A grid, and a line below it that says how much of what there is it shows."""

    layout_of: Layout[ItemT]

    def compose(self) -> ComposeResult:
        yield Grid(self.layout_of)
        yield Static(classes="note")

    @property
    def grid(self) -> Grid[ItemT]:
        return cast("Grid[ItemT]", self.query_one(Grid))

    @property
    def dashboard(self) -> Dashboard:
        return cast("Dashboard", self.app)

    def focus_content(self) -> None:
        self.grid.focus()

    def give(self, items: Sequence[ItemT], at: float) -> None:
        self.grid.give(items, at)

    @on(Grid.Moved)
    def _say_how_many(self) -> None:
        listing = self.grid.listing
        parts = [f"{len(listing.visible)} of {listing.total}"]
        if listing.marks:
            parts.append(f"{len(listing.marks)} marked")
        if listing.filter:
            parts.append(f"filter {one_line(listing.filter, 30)!r}")
        if listing.faults_only:
            parts.append("only what went wrong")
        if listing.sorted_by:
            parts.append(f"by {listing.layout.column(listing.sorted_by).title.lower()}")
        self.note(" · ".join(parts))

    def note(self, text: str) -> None:
        say(self.query_one(".note", Static), text)


class SandboxesView(TableView[SandboxFacts]):
    """Every sandbox, and what can be done with one."""

    layout_of = SANDBOXES
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "logs", "Logs"),
        Binding("s", "shell", "Shell"),
        Binding("d", "describe", "Describe"),
        Binding("y", "raw", "Raw", show=False),
        Binding("r", "restart", "Restart"),
        Binding("ctrl+d", "remove", "Remove", show=False),
    ]

    _tasks_shown = False

    def show(self, seen: Snapshot) -> None:
        found = () if seen.fleet is None else seen.fleet.sandboxes
        if not self._tasks_shown and any(one.task for one in found):
            self._tasks_shown = True  # once, for somebody may take the column away again
            self.grid.set_columns(["task", *(column.key for column in self.grid.listing.columns)])
        self.give(found, seen.at)
        if seen.fleet is None:
            self.note("no fleet is looked at" if not seen.away else one_line(seen.away))

    @on(Grid.Opened)
    def _open(self) -> None:
        if (one := self.grid.listing.current) is not None:
            self.dashboard.open_sandbox(one)

    def action_logs(self) -> None:
        if (one := self.grid.listing.current) is not None:
            self.dashboard.read_logs(one.id)

    def action_shell(self) -> None:
        if (one := self.grid.listing.current) is not None:
            self.dashboard.open_shell(one)

    def action_describe(self) -> None:
        if (one := self.grid.listing.current) is not None:
            self.dashboard.read_description(one.id)

    def action_raw(self) -> None:
        if (one := self.grid.listing.current) is not None:
            self.dashboard.read_raw(one.id)

    def action_restart(self) -> None:
        if chosen := self.grid.listing.chosen:
            self.dashboard.restart(chosen)

    def action_remove(self) -> None:
        if chosen := self.grid.listing.chosen:
            self.dashboard.remove(chosen)


class EventsView(TableView[EventFacts]):
    """What happened, newest first. `/` finds a sandbox, a cause or a word of the detail."""

    layout_of = EVENTS

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._events: dict[int, EventFacts] = {}
        self._at = 0.0
        self._fetched = False

    def show(self, seen: Snapshot) -> None:
        self._at = seen.at
        self._add(() if seen.fleet is None else seen.fleet.events)
        if seen.fleet is not None and not self._fetched:
            self._fetched = True
            self._fetch()

    def _add(self, events: Sequence[EventFacts]) -> None:
        self._events.update((event.seq, event) for event in events)
        for seq in sorted(self._events)[:-EVENTS_KEPT]:
            del self._events[seq]
        self.give(tuple(self._events.values()), self._at)

    @work(exclusive=True, group="events")
    async def _fetch(self) -> None:
        try:
            self._add(await self.dashboard.source.events(limit=EVENTS_FETCHED))
        except (SourceAway, SourceRefused) as error:
            self._fetched = False
            self.note(one_line(str(error)))

    @on(Grid.Opened)
    def _open(self) -> None:
        if (event := self.grid.listing.current) is not None:
            sandboxes = (
                ()
                if self.dashboard.seen is None or self.dashboard.seen.fleet is None
                else self.dashboard.seen.fleet.sandboxes
            )
            found = next((one for one in sandboxes if one.id == event.sandbox), None)
            if found is not None:
                self.dashboard.open_sandbox(found)


class AlertsView(TableView[AlertFacts]):
    """Alerts of fleet and run, those that last first."""

    layout_of = ALERTS

    def show(self, seen: Snapshot) -> None:
        parts = [part for part in (seen.fleet, seen.run) if part is not None]
        self.give(tuple(alert for part in parts for alert in part.alerts), seen.at)

    @on(Grid.Opened)
    def _open(self) -> None:
        if (alert := self.grid.listing.current) is not None:
            self.dashboard.push_screen(TextPage(f"Alert {one_line(alert.rule)}", alert_text(alert)))


class FetchedView(TableView[ItemT]):
    """A list of a run that is fetched when the run has changed."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._of: tuple[int, float | None] | None = None
        self._at = 0.0

    async def fetch(self) -> Sequence[ItemT]:
        raise NotImplementedError

    def show(self, seen: Snapshot) -> None:
        self._at = seen.at
        if seen.run is None:
            self.note("no run is looked at; name its folder with `rock top --run DIR`")
            return
        state = (len(seen.run.rows), seen.run.updated)
        if state != self._of:
            self._of = state
            self._fetch_all()

    @work(exclusive=True, group="fetch")
    async def _fetch_all(self) -> None:
        try:
            self.give(await self.fetch(), self._at)
        except (SourceAway, SourceRefused) as error:
            self.note(one_line(str(error)))


class GroupsView(FetchedView[GroupFacts]):
    """Groups of episodes that were learned from together; enter shows a group's trajectories."""

    layout_of = GROUPS

    async def fetch(self) -> Sequence[GroupFacts]:
        return await self.dashboard.source.groups()

    @on(Grid.Opened)
    def _open(self) -> None:
        if (group := self.grid.listing.current) is not None:
            self.dashboard.show_group(group.id)


class TrajectoriesView(FetchedView[TrajectoryFacts]):
    """Episodes, newest first; enter reads one, turn by turn."""

    layout_of = TRAJECTORIES

    async def fetch(self) -> Sequence[TrajectoryFacts]:
        return await self.dashboard.source.trajectories()

    @on(Grid.Opened)
    def _open(self) -> None:
        if (one := self.grid.listing.current) is not None:
            self.dashboard.push_screen(EpisodePage(one.id, self.dashboard.source.trajectory))


class TrainingView(TableView[Curve]):
    """Every figure of a run, and the curve of the one under the cursor."""

    layout_of = CURVES

    def compose(self) -> ComposeResult:
        yield Static(id="plot")
        yield from super().compose()

    def show(self, seen: Snapshot) -> None:
        if seen.run is None:
            self.note("no run is looked at; name its folder with `rock top --run DIR`")
            return
        self.give(curves(seen), seen.at)

    @on(Grid.Moved)
    def _draw(self) -> None:
        place = self.query_one("#plot", Static)
        one = self.grid.listing.current
        width, height = place.content_size
        place.update("" if one is None or not width else curve(one, width, height))

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)


def curves(seen: Snapshot) -> tuple[Curve, ...]:
    """The run's figures, those that say most first."""
    if seen.run is None:
        return ()
    points: dict[str, list[tuple[float, float]]] = {}
    for row in seen.run.rows:
        for name, value in row.items():
            if name != "iteration":
                points.setdefault(name, []).append((row["iteration"], value))
    for evaluation in seen.run.evaluations:
        points.setdefault(f"evaluation/{evaluation.where}", []).append((evaluation.iteration, evaluation.success))
    names = sorted(
        points, key=lambda name: next((at for at, one in enumerate(FIRST) if name.startswith(one)), len(FIRST))
    )
    return tuple(Curve(name, tuple(points[name])) for name in names)


FIRST = (
    "batch/success",
    "batch/reward",
    "evaluation/",
    "success/",
    "domain/",
    "staleness/",
    "idle/",
    "objective/",
    "ratio/",
    "mismatch/",
    "credit/",
    "critics/",
)
"""Beginnings of names, in the order in which the curves stand."""

VIEWS: dict[str, type[View]] = {
    "overview": Overview,
    "sandboxes": SandboxesView,
    "groups": GroupsView,
    "training": TrainingView,
    "trajectories": TrajectoriesView,
    "events": EventsView,
    "alerts": AlertsView,
}
