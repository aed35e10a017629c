"""What every view of the main screen is."""

from __future__ import annotations

from typing import Any

from textual.containers import Vertical

from rocknroll.dashboard.grid import Grid
from rocknroll.dashboard.snapshot import Snapshot


class View(Vertical):
    """Shown in turn; only the one that is shown is given snapshots."""

    def __init__(self, name: str) -> None:
        super().__init__(id=name)

    @property
    def grid(self) -> Grid[Any] | None:
        """Its table, where it has one."""
        return None

    def show(self, seen: Snapshot) -> None:
        """Draw it."""
        raise NotImplementedError

    def focus_content(self) -> None:
        """Take the keyboard."""
        raise NotImplementedError
