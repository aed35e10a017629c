"""Applies `ascii.py` to everything that is drawn, whoever draws it: borders, scroll bars and agents' text included."""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from rocknroll.dashboard.ascii import to_ascii


class AsciiFilter(LineFilter):
    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(to_ascii(text), style, control) for text, style, control in segments]
