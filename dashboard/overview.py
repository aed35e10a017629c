"""The first view: what is wrong, the figures of fleet and run, the curves that count, the last alerts."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.widgets import Sparkline, Static

from rocknroll.dashboard.figures import CURVES, Panel, panels
from rocknroll.dashboard.frame import lasting
from rocknroll.dashboard.layouts import clock
from rocknroll.dashboard.snapshot import Snapshot
from rocknroll.dashboard.text import one_line
from rocknroll.dashboard.view import View

if TYPE_CHECKING:
    from rocknroll.dashboard.app import Dashboard

LABEL_CHARS = 11
ALERTS = 5


class Overview(View):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "app.view('sandboxes')", "Sandboxes"),
        Binding("j,down", "scroll(1)", "Down", show=False),
        Binding("k,up", "scroll(-1)", "Up", show=False),
        Binding("g,home", "scroll(-1000)", "First", show=False),
        Binding("G,end", "scroll(1000)", "Last", show=False),
    ]

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="glance", can_focus=True):
            yield Static(id="reasons")
            with Container(id="panels"):
                yield Static(id="fleet", classes="panel")
                yield Static(id="run", classes="panel")
            for label in CURVES.values():
                yield Static(label, id=f"{label}-label", classes="curve-label")
                yield Sparkline(id=f"{label}-curve", summary_function=max)
            yield Static(id="latest")

    def focus_content(self) -> None:
        self.query_one("#glance").focus()

    def show(self, seen: Snapshot) -> None:
        found = panels(seen)
        self._panel("#fleet", next((panel for panel in found if panel.title == "Fleet"), None))
        self._panel("#run", next((panel for panel in found if panel.title != "Fleet"), None))
        histories = {figure.label: figure for panel in found for figure in panel.figures if figure.history}
        for label in CURVES.values():
            figure = histories.get(label)
            here = self.query_one(f"#{label}-label", Static), self.query_one(f"#{label}-curve", Sparkline)
            for widget in here:
                widget.display = figure is not None
            if figure is not None:
                here[0].update(Text(f"{label} {figure.value}"))
                here[1].data = list(figure.history)
        self._say_reasons()
        self._say_alerts(seen)

    def _panel(self, selector: str, panel: Panel | None) -> None:
        place = self.query_one(selector, Static)
        place.display = panel is not None
        if panel is None:
            return
        text = Text(panel.title, style="bold")
        for figure in panel.figures:
            text.append(f"\n{figure.label:{LABEL_CHARS}}", "dim not bold")
            text.append(figure.value, "not bold")
        place.update(text)

    def _say_reasons(self) -> None:
        verdict = cast("Dashboard", self.app).verdict
        reasons = () if verdict is None else verdict.reasons
        place = self.query_one("#reasons", Static)
        place.display = len(reasons) > 0
        place.update(Text("\n".join(f"• {reason}" for reason in reasons)))

    def _say_alerts(self, seen: Snapshot) -> None:
        alerts = lasting(seen)
        text = Text("Alerts" if alerts else "No alerts", style="bold")
        for alert in alerts[:ALERTS]:
            text.append(f"\n{clock(alert.since)} {one_line(alert.severity):9}", "dim not bold")
            text.append(f"{one_line(alert.subject)}: {one_line(alert.text)}", "not bold")
        self.query_one("#latest", Static).update(text)

    def action_scroll(self, lines: int) -> None:
        self.query_one("#glance").scroll_relative(y=lines, animate=False)
