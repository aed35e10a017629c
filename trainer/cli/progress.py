"""Draws a run while it goes on: bars and one live line on a terminal, plain lines elsewhere.

Everything goes to stderr; stdout is for results.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from rocknroll.sandbox.alerts.rule import Alert
from rocknroll.trainer.results import EvalResult
from rocknroll.trainer.rollout.meter import bottleneck

PLAIN_EVERY_S = 10.0
"""Seconds between two progress lines where there is no terminal: a log stays short, a hang shows."""


class PlainUI:
    """A `RunUI` for logs: a line for what happened, and now and then one for what goes on."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._told: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def phase(self, name: str) -> None:
        self.message(name)

    def progress(self, phase: str, done: int, total: int) -> None:
        now = time.monotonic()
        finished = bool(total) and done >= total
        if finished or now - self._told.setdefault(phase, now) >= PLAIN_EVERY_S:
            self._told[phase] = now
            self.message(f"{phase} {done}/{total}" if total else f"{phase} {done}")

    def iteration(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        self.message(f"iteration {step}/{total}  {status_line(metrics)}")

    def evaluation(self, label: str, result: EvalResult) -> None:
        self.message(f"{label}: {evaluation_line(result)}")

    def alert(self, alert: Alert) -> None:
        if alert.resolved is None:
            self.message(f"ALERT {alert.rule} ({alert.severity}): {alert.text}")
        else:
            self.message(f"alert {alert.rule} on {alert.subject} is over after {alert.resolved - alert.since:.0f} s")

    def message(self, text: str) -> None:
        since = f"{time.monotonic() - self._started:5.0f}s"
        self._console.print(f"{since}  {text}", markup=False, highlight=False, soft_wrap=True)


class LiveUI(PlainUI):
    """A `RunUI` for people: bars below the lines. Use as a context manager, the bars end with it."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._bars: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description:<12}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[status]}"),
            console=console,
            transient=True,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def phase(self, name: str) -> None:
        for bar in self._bars.values():
            self._progress.remove_task(bar)
        self._bars.clear()
        super().phase(name)

    def progress(self, phase: str, done: int, total: int) -> None:
        self._draw(phase, done, total, "")
        if total and done >= total:
            self._progress.remove_task(self._bars.pop(phase))

    def iteration(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        self._draw("iterations", step, total, status_line(metrics))

    def _draw(self, name: str, done: int, total: int, status: str) -> None:
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, status="")
        self._progress.update(self._bars[name], completed=done, total=total or None, status=status)


def make_ui() -> PlainUI:
    """Bars where stderr is a terminal, lines elsewhere."""
    console = Console(stderr=True)
    return LiveUI(console) if console.is_terminal else PlainUI(console)


_STATUS = (
    ("batch/success", "success {:.0%}"),
    ("batch/reward", "reward {:.2f}"),
    ("batch/invalid_action_fraction", "invalid {:.0%}"),
    ("staleness/mean", "stale {:.1f}"),
    ("rollout/tokens_per_s", "{:.0f} tok/s"),
    ("rollout/episodes_per_min", "{:.0f} ep/min"),
)
_IDLE = (("idle/engine", "engine"), ("idle/environments", "envs"), ("idle/learner", "learner"))


def status_line(metrics: Mapping[str, float]) -> str:
    """What of an iteration's metrics fits on one line; what is not there is left out."""
    parts = [form.format(metrics[key]) for key, form in _STATUS if key in metrics]
    idle = [f"{name} {metrics[key]:.0%}" for key, name in _IDLE if key in metrics]
    waiting = [f"idle {' '.join(idle)} (busiest: {bottleneck(metrics)})"] if idle else []
    return "  ".join(parts + waiting)


def evaluation_line(result: EvalResult) -> str:
    """`61.5% of 192 unseen tasks (95%: 54.4–68.1%)`."""
    low, high = result.ci95
    return f"{result.success_rate:.1%} of {result.episodes} {result.where} tasks (95%: {low:.1%}–{high:.1%})"
