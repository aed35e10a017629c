"""Text that others wrote, made fit to be drawn, and quantities in few characters.

Agents, environments and programs in sandboxes write what they like: nothing of it may drive the terminal, turn the
direction of what follows, or be read as markup. Everything from a snapshot passes through here before it is drawn.
"""

from __future__ import annotations

from rocknroll.sandbox.cli.output import printable

ELLIPSIS = "…"
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400
_UNITS = ("B", "K", "M", "G", "T")


def plain(text: str) -> str:
    """Text of several lines, without escape sequences and anything else that is not seen where it stands."""
    if text.isprintable():
        return text
    return "".join(_seen(character) for character in printable(text.replace("\r\n", "\n")))


def one_line(text: str, chars: int | None = None) -> str:
    """The same on one line, cut at `chars`."""
    line = " ".join(plain(text).split())
    return line if chars is None or len(line) <= chars else line[: max(0, chars - 1)] + ELLIPSIS


def _seen(character: str) -> str:
    """Not: format characters (right-to-left marks), private use, lone surrogates, which no terminal could be sent."""
    if character == "\n" or character.isprintable():
        return character
    return " " if character.isspace() else ""


def duration(seconds: float) -> str:
    """`8s`, `4m12s`, `3h04m`, `12d3h`; five characters or so."""
    whole = max(0, int(seconds))
    if whole < _MINUTE_S:
        return f"{whole}s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S}m{whole % _MINUTE_S:02d}s"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S}h{whole % _HOUR_S // _MINUTE_S:02d}m"
    return f"{whole // _DAY_S}d{whole % _DAY_S // _HOUR_S}h"


def latency(seconds: float) -> str:
    """`3 ms`, `0.24 s`, `12 s`."""
    if seconds < 0.1:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"


def size(count: int) -> str:
    """Bytes in binary units: `812K`, `1.4G`."""
    value = float(count)
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{value:.1f}{unit}" if value < 10 and unit != "B" else f"{value:.0f}{unit}"


def percent(share: float) -> str:
    return f"{100 * share:.0f}%"
