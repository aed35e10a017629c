"""A trajectory's action tokens coloured by what the learner saw in them: for a terminal, and as a page of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import typer
from numpy.typing import NDArray

from rocknroll.trainer.cli.trajectory_view import Decode, headline, printable
from rocknroll.trainer.credit.rhythm import Signals, couple
from rocknroll.trainer.credit.section import CreditSection
from rocknroll.trainer.insights import SIGNALS
from rocknroll.trainer.storage import Stored

Array = NDArray[np.float64]

PROBABILITY = "probability"
"""Of the token when it was sampled; there is always one."""
SIGNED = frozenset({"advantage", "value"})
ANCHOR, INTRODUCTION = "*", "^"
"""Marks behind a token: it is an anchor; it introduces one."""


@dataclass(frozen=True)
class Colouring:
    """Values of one trajectory's action tokens by signal, [n] each, and which tokens are marked."""

    values: Mapping[str, Array]
    marks: Sequence[str]

    @classmethod
    def of(cls, stored: Stored, insights: Mapping[str, Array], credit: CreditSection) -> Colouring:
        """`credit`: the settings that say which tokens are anchors, and which introduce them."""
        trajectory = stored.trajectory
        positions = np.flatnonzero(trajectory.action_mask)
        values = {PROBABILITY: np.exp(trajectory.logprobs[positions].astype(np.float64)), **insights}
        marks = [""] * len(positions)
        if "waad" in insights and "fai" in insights:
            segments = np.cumsum(np.diff(positions, prepend=positions[:1]) > 1, dtype=np.int64)
            found = couple(Signals(insights["waad"], insights["fai"], segments, values[PROBABILITY]), credit)
            both = zip(found.anchors, found.introductions, strict=True)
            marks = [ANCHOR * bool(anchor) + INTRODUCTION * bool(introduces) for anchor, introduces in both]
        return cls(values, marks)

    def colour(self, signal: str, index: int) -> tuple[int, int, int] | None:
        """Red, green and blue of a token: deeper for larger values, green and red for those with a sign."""
        values = self.values[signal]
        value, largest = values[index], float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 0.0
        if math.isnan(value) or not largest:
            return None
        depth = abs(value) / largest
        deepest = (245, 158, 66) if signal not in SIGNED else (96, 190, 120) if value > 0 else (235, 110, 100)
        red, green, blue = (round(255 - depth * (255 - channel)) for channel in deepest)
        return red, green, blue


def painter(stored: Stored, decode: Decode, colouring: Colouring, signal: str) -> Callable[[int, int], str]:
    """The tokens `start` to `end` of an action as a line of `token:value`, coloured for a terminal."""
    token_ids = stored.trajectory.token_ids
    ranks = np.cumsum(stored.trajectory.action_mask) - 1

    def line(start: int, end: int) -> str:
        parts = []
        for at in range(start, end):
            index = int(ranks[at])
            text = f"{printable(decode([int(token_ids[at])])).strip()}{colouring.marks[index]}"
            text = f"{text}:{_number(signal, float(colouring.values[signal][index]))}"
            colour = colouring.colour(signal, index)
            parts.append(text if colour is None else typer.style(text, fg=(0, 0, 0), bg=colour))
        return " ".join(parts)

    return line


def legend(colouring: Colouring, signal: str) -> str:
    """What the colours and marks mean, where there is a choice."""
    what = SIGNALS.get(signal, "the probability it was sampled with")
    marks = f"; {ANCHOR} anchor, {INTRODUCTION} introduces one" if any(colouring.marks) else ""
    others = ", ".join(name for name in colouring.values if name != signal)
    return f"tokens by {signal}: {what}{marks} (--signal also knows {others})" if others else ""


def page(stored: Stored, decode: Decode, colouring: Colouring) -> str:
    """The whole episode as a web page that needs nothing else, with a choice of signal."""
    trajectory = stored.trajectory
    ranks = np.cumsum(trajectory.action_mask) - 1
    rules = []
    body = []
    seen_until = 0
    for number, turn in enumerate(trajectory.turns, start=1):
        body.append(
            f"<pre>{escape(printable_lines(decode(trajectory.token_ids[seen_until : turn.start].tolist())))}</pre>"
        )
        tokens = "".join(_token(stored, decode, colouring, at, int(ranks[at])) for at in range(turn.start, turn.end))
        body.append(f"<p><b>{number}</b> {tokens}<small>reward {turn.reward:+.2f}</small></p>")
        seen_until = turn.end
    if rest := decode(trajectory.token_ids[seen_until:].tolist()):
        body.append(f"<pre>{escape(printable_lines(rest))}</pre>")
    choices = []
    for number, signal in enumerate(colouring.values):
        checked = " checked" if number == 0 else ""
        what = escape(SIGNALS.get(signal, "the probability it was sampled with"))
        choices.append(
            f'<label title="{what}"><input type="radio" name="signal" id="by-{signal}"{checked}> {signal}</label>'
        )
        colours = [colouring.colour(signal, index) for index in range(len(colouring.marks))]
        rules += [
            f"body:has(#by-{signal}:checked) #t{index}{{background:rgb{colour}}}"
            for index, colour in enumerate(colours)
            if colour is not None
        ]
    title = escape(headline(stored))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}{''.join(rules)}</style><body><h1>{title}</h1>"
        f"<form>{' '.join(choices)}</form><p>{ANCHOR} anchor, {INTRODUCTION} introduces one; point at a token for its"
        f" figures</p>{''.join(body)}</body></html>\n"
    )


_STYLE = (
    "body{font:15px/1.6 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "h1{font-size:1.1rem}pre{white-space:pre-wrap;color:#666;margin:.6rem 0}"
    "span{padding:.15rem .3rem;margin-right:.15rem;border-radius:.25rem;font-family:monospace}"
    "form{position:sticky;top:0;background:#fff;padding:.5rem 0;border-bottom:1px solid #ddd}"
    "label{margin-right:1rem}small{color:#888;margin-left:1rem}"
)


def printable_lines(text: str) -> str:
    """Text with its line breaks, and without other control characters."""
    return "\n".join(printable(line) for line in text.strip().splitlines())


def _token(stored: Stored, decode: Decode, colouring: Colouring, at: int, index: int) -> str:
    figures = ", ".join(f"{name} {_number(name, float(values[index]))}" for name, values in colouring.values.items())
    text = printable(decode([int(stored.trajectory.token_ids[at])])).strip()
    return f'<span id="t{index}" title="{escape(figures)}">{escape(text)}{colouring.marks[index]}</span>'


def _number(signal: str, value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:+.3f}" if signal in SIGNED else f"{value:.2f}" if signal == PROBABILITY else f"{value:.3g}"
