"""What every view of the main screen is."""

from __future__ import annotations

from typing import Any

from rich.text import Text
from textual.containers import Vertical
from textual.widgets import Static

from rocknroll.dashboard.grid import Grid
from rocknroll.dashboard.snapshot import Snapshot


def say(line: Static, text: str | Text) -> None:
    """Write a line whose size is fixed, without the layout of the whole screen that Textual would do for it."""
    if isinstance(text, str):
        text = Text(text)
    if line.content != text:
        line.update(text, layout=False)


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
