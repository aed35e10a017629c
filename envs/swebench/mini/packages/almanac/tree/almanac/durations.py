"""Durations as text: `1d 2h 30m` for people, `P1DT2H30M` (ISO 8601) for machines.

What is formatted here can be read again here, to the microsecond.
"""

from __future__ import annotations

import re
from datetime import timedelta

_UNITS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds"}


def _amounts(letters: str, between: str = "") -> str:
    return between.join(rf"(?:(?P<{letter.lower()}>[0-9]+(?:\.[0-9]+)?){letter})?" for letter in letters)


_COMPACT = re.compile(r"(?P<sign>-)?" + _amounts("wdhms", r"\s*"))
_ISO = re.compile(r"(?P<sign>-)?P" + _amounts("WD") + "(?:T(?=[0-9])" + _amounts("HMS") + ")?")


def parse_duration(text: str) -> timedelta:
    """Read a duration in either form: each unit at most once, larger ones first, a minus sign before all of it.

    Raises:
        ValueError: it is in neither form, names no amount, or is longer than `timedelta` can hold.
    """
    match = _COMPACT.fullmatch(text.strip()) or _ISO.fullmatch(text.strip())
    amounts = {name: match[unit] for unit, name in _UNITS.items() if match[unit]} if match else {}
    if not match or not amounts:
        raise ValueError(f"not a duration: {text!r}")
    try:
        size = timedelta(**{name: float(amount) for name, amount in amounts.items()})
    except OverflowError as error:
        raise ValueError(f"too long a duration: {text!r}") from error
    return -size if match["sign"] else size


def _split(delta: timedelta) -> tuple[str, dict[str, str]]:
    """Sign of a duration, and its non-zero amounts by unit."""
    sign = "-" if delta < timedelta(0) else ""
    size = abs(delta)
    minutes, seconds = divmod(size.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    exact = f"{seconds}.{size.microseconds:06}".rstrip("0").rstrip(".")
    amounts = {"d": str(size.days), "h": str(hours), "m": str(minutes), "s": exact}
    return sign, {unit: amount for unit, amount in amounts.items() if amount != "0"}


def format_duration(delta: timedelta) -> str:
    """Write `1d 2h 30m 1.5s`, without what is zero; a negative duration is its opposite after a minus sign."""
    sign, amounts = _split(delta)
    return sign + (" ".join(amount + unit for unit, amount in amounts.items()) or "0s")


def format_iso_duration(delta: timedelta) -> str:
    """Write `P1DT2H30M1.5S`; a negative duration is its opposite after a minus sign."""
    sign, amounts = _split(delta)
    days = f"{amounts.pop('d')}D" if "d" in amounts else ""
    time = "".join(amount + unit.upper() for unit, amount in amounts.items())
    if not days and not time:
        time = "0S"
    return f"{sign}P{days}" + (f"T{time}" if time else "")
