"""One curve with its axes, as text."""

from __future__ import annotations

import plotext
from rich.text import Text

from rocknroll.dashboard.layouts import Curve
from rocknroll.dashboard.text import one_line

LEAST_WIDTH, LEAST_HEIGHT = 20, 5


def curve(one: Curve, width: int, height: int) -> Text:
    """Points joined by lines; of `width` by `height` cells."""
    if width < LEAST_WIDTH or height < LEAST_HEIGHT:
        return Text("too little room for a curve")
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(width, height)
    plotext.title(one_line(one.name))
    plotext.plot([x for x, _ in one.points], [y for _, y in one.points], marker="braille")
    return Text.from_ansi(plotext.build(), no_wrap=True)
