"""What lies over a screen until it is answered: keys, a question, a choice of columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import SelectionList, Static
from textual.widgets.selection_list import Selection

KEYS_WIDTH = 22


class KeyLine(NamedTuple):
    """A line of the help."""

    keys: tuple[tuple[str, str], ...]
    """(name for programs, as it is shown)."""
    description: str


class Help(ModalScreen[None]):
    """The keys that do something where it was asked for; made from the bindings themselves."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter", "dismiss(None)", "Close"),
        Binding("j,down", "scroll(1)", "Down", show=False),
        Binding("k,up", "scroll(-1)", "Up", show=False),
    ]

    def __init__(self, lines: Sequence[KeyLine], title: str) -> None:
        super().__init__()
        self.lines, self._of = lines, title

    def compose(self) -> ComposeResult:
        text = Text()
        for line in self.lines:
            keys = ", ".join(dict.fromkeys(shown for _, shown in line.keys))
            text.append(f"{keys:{KEYS_WIDTH}}", "bold")
            text.append(f"{line.description}\n")
        with VerticalScroll(id="help") as box:
            box.border_title = "Keys"
            yield Static(text)
            yield Static(Text(f"\nLooking at {self._of}. Clicks work, too; ctrl+p has themes.", style="dim"))

    def action_scroll(self, lines: int) -> None:
        self.query_one("#help").scroll_relative(y=lines, animate=False)


class Confirm(ModalScreen[bool]):
    """A question; only `y` is a yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "Yes"),
        Binding("n,escape,enter,q", "dismiss(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical(id="confirm"):
            yield Static(Text(self._question))
            yield Static(Text("\ny yes   n no", style="bold"))


class ColumnPicker(ModalScreen[Sequence[str] | None]):
    """Space chooses, enter is done, escape leaves everything as it was."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,c", "done", "Done", priority=True),
        Binding("escape,q", "dismiss(None)", "Leave"),
        Binding("j", "cursor(1)", "Down", show=False),
        Binding("k", "cursor(-1)", "Up", show=False),
    ]

    def __init__(self, choices: Sequence[tuple[str, str, bool]]) -> None:
        """`choices`: key, title, whether it is shown."""
        super().__init__()
        self._choices = choices

    def compose(self) -> ComposeResult:
        picker = SelectionList[str](*(Selection(Text(title), key, shown) for key, title, shown in self._choices))
        picker.border_title = "Columns: space chooses, enter is done"
        yield picker

    def action_done(self) -> None:
        self.dismiss(list(self.query_one(SelectionList).selected))

    def action_cursor(self, step: int) -> None:
        picker = self.query_one(SelectionList)
        picker.action_cursor_down() if step > 0 else picker.action_cursor_up()
