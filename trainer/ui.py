"""What a run tells the person in front of it. The run calls these; the command line draws them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rocknroll.sandbox.alerts.rule import Alert
from rocknroll.trainer.results import EvalResult


class RunUI(Protocol):
    """Called from one thread, but for `alert`; must return at once and never raise."""

    def phase(self, name: str) -> None:
        """A new part of the run begins (`warm start`, `learning`); the one before is over."""

    def progress(self, phase: str, done: int, total: int) -> None:
        """Work inside a phase; `total` may be 0 while it is unknown."""

    def iteration(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        """One rollout batch was learned from; `metrics` as in `metrics.jsonl`."""

    def evaluation(self, label: str, result: EvalResult) -> None:
        """A policy was evaluated; `label` says when (`before RL`, `iteration 20`, `after RL`)."""

    def alert(self, alert: Alert) -> None:
        """An alert was raised or resolved. Called from any thread."""

    def message(self, text: str) -> None:
        """Anything else worth a line."""


class Quiet:
    """Says nothing; for programs that call `train` themselves."""

    def phase(self, name: str) -> None: ...

    def progress(self, phase: str, done: int, total: int) -> None: ...

    def iteration(self, step: int, total: int, metrics: Mapping[str, float]) -> None: ...

    def evaluation(self, label: str, result: EvalResult) -> None: ...

    def alert(self, alert: Alert) -> None: ...

    def message(self, text: str) -> None: ...
