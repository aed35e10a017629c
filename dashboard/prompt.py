"""The line at the bottom in which a filter or the name of a view is typed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.suggester import SuggestFromList
from textual.widgets import Input

SIGNS = {"filter": "/", "jump": ":"}


class Prompt(Input):
    """Hidden until it is opened."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss_prompt", "Give up", show=False)]

    class Dismissed(Message):
        """It was left without an answer."""

        def __init__(self, purpose: str) -> None:
            self.purpose = purpose
            super().__init__()

    def __init__(self) -> None:
        super().__init__(id="prompt", compact=True)
        self.purpose = ""
        self.display = False

    def open(self, purpose: str, value: str, choices: Sequence[str]) -> None:
        """Take the keyboard; `choices` are completed with the right arrow."""
        self.purpose = purpose
        self.placeholder = {"filter": "text to find; ! in front: not to find", "jump": "name of a view"}[purpose]
        self.border_title = SIGNS[purpose]
        self.suggester = SuggestFromList(choices, case_sensitive=False) if choices else None
        with self.prevent(Input.Changed):
            self.value = value
        self.display = True
        self.focus()

    def close(self) -> None:
        self.display = False

    def action_dismiss_prompt(self) -> None:
        self.close()
        self.post_message(self.Dismissed(self.purpose))
