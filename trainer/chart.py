"""Line charts as SVG text, for a report that is one file and needs no plotting library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 720, 280
LEFT, RIGHT, TOP, BOTTOM = 56, 150, 16, 40
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's palette: told apart with any colour vision."""
TICKS = 5


@dataclass(frozen=True)
class Series:
    """One line. `intervals` gives (x, low, high) for error bars."""

    label: str
    points: Sequence[tuple[float, float]]
    intervals: Sequence[tuple[float, float, float]] = ()
    faint: bool = False
    """Thin and without markers: a noisy line behind the one that counts."""


def line_chart(series: Sequence[Series], *, x_label: str, y_label: str, percent: bool = False) -> str:
    """An SVG element; empty series are left out, and without any data the text is empty.

    Args:
        percent: y is a share: its axis runs from 0 to 1 and is labelled in percent.
    """
    series = [s for s in series if s.points]
    if not series:
        return ""
    xs = [x for s in series for x, _ in s.points]
    ys = [y for s in series for _, y in s.points] + [y for s in series for _, *ends in s.intervals for y in ends]
    x_ticks = _ticks(min(xs), max(xs))
    y_ticks = [0.0, 0.25, 0.5, 0.75, 1.0] if percent else _ticks(min(0.0, *ys), max(ys))
    across = _scale(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    up = _scale(min(y_ticks), max(*y_ticks, *ys), HEIGHT - BOTTOM, TOP)
    body = [_axes(x_ticks, y_ticks, across, up, percent), _captions(x_label, y_label)]
    for number, one in enumerate(series):
        body.append(_draw(one, COLOURS[number % len(COLOURS)], TOP + 18 * number, across, up))
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(y_label)} by {escape(x_label)}">'
        f"{''.join(body)}</svg>"
    )


def _draw(
    one: Series, colour: str, legend_y: float, across: Callable[[float], float], up: Callable[[float], float]
) -> str:
    path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in one.points)
    opacity, width = (0.45, 1.2) if one.faint else (1.0, 2.2)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}" opacity="{opacity}"/>']
    for x, low, high in one.intervals:
        at, bottom, top = across(x), up(low), up(high)
        bar = f"M{at - 4:.1f} {bottom:.1f}h8M{at:.1f} {bottom:.1f}V{top:.1f}M{at - 4:.1f} {top:.1f}h8"
        parts.append(f'<path d="{bar}" stroke="{colour}" fill="none"/>')
    if not one.faint:
        for x, y in one.points:
            centre = f'cx="{across(x):.1f}" cy="{up(y):.1f}"'
            parts.append(f'<circle {centre} r="3" fill="{colour}"><title>{x:g}: {y:.3g}</title></circle>')
    x0 = WIDTH - RIGHT + 12
    parts.append(f'<path d="M{x0} {legend_y + 6}h18" stroke="{colour}" stroke-width="{width}" opacity="{opacity}"/>')
    parts.append(f'<text x="{x0 + 24}" y="{legend_y + 10}">{escape(one.label)}</text>')
    return "".join(parts)


def _axes(
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    across: Callable[[float], float],
    up: Callable[[float], float],
    percent: bool,
) -> str:
    parts = []
    for y in y_ticks:
        label = f"{y:.0%}" if percent else f"{y:g}"
        parts.append(f'<path d="M{LEFT} {up(y):.1f}H{WIDTH - RIGHT}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{up(y) + 4:.1f}" text-anchor="end">{label}</text>')
    below = HEIGHT - BOTTOM + 18
    parts += [f'<text x="{across(x):.1f}" y="{below}" text-anchor="middle">{x:g}</text>' for x in x_ticks]
    return "".join(parts)


def _captions(x_label: str, y_label: str) -> str:
    centre, middle = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    upright = f'transform="rotate(-90 14 {middle})"'
    return (
        f'<text x="{centre}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>'
        f'<text x="14" y="{middle}" text-anchor="middle" {upright}>{escape(y_label)}</text>'
    )


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = high - low or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers from `low` to `high`, about TICKS of them."""
    rough = (high - low or 1.0) / TICKS
    magnitude = 10.0 ** floor(log10(rough))
    step = next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= rough)
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [round(n * step, 10) for n in range(first, last + 1)]
