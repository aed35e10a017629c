"""References between values: `${key}`, `${section:key}`, and `$$` for a dollar."""

from __future__ import annotations

import re
from collections.abc import Callable

from inikit.errors import InterpolationError, MissingReference, ReferenceCycle
from inikit.quoting import BLANK

Place = tuple[str, str]  # section and key
Lookup = Callable[[str, str], "str | None"]  # value of a place before expansion, None if it is not there

_TOKEN = re.compile(r"\$\$|\$\{(?:([^{}]*)\})?")


def escape(text: str) -> str:
    """Text that expands to `text`."""
    return text.replace("$", "$$")


def shown(place: Place) -> str:
    """A place as a reference names it: `section:key`, or only `key` above the first header."""
    return ":".join(part for part in place if part)


def expand(lookup: Lookup, section: str, key: str, chain: tuple[Place, ...] = ()) -> str:
    """The value of a key that exists, with its references replaced; `chain` are the places that led here.

    Raises:
        MissingReference: it refers, perhaps through others, to a key that is not there.
        ReferenceCycle: it refers to itself.
        InterpolationError: a reference is not closed.
    """
    here = (section, key.casefold())
    if here in chain:
        raise ReferenceCycle(tuple(shown(place) for place in (*chain[chain.index(here) :], here)))

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        if match[1] is None:
            raise InterpolationError(f"{shown(here)}: a reference is not closed")
        return expand(lookup, *_target(lookup, here, match[1].strip(BLANK)), (*chain, here))

    return _TOKEN.sub(replace, lookup(section, key) or "")


def _target(lookup: Lookup, here: Place, name: str) -> Place:
    section, colon, key = name.rpartition(":")
    for candidate in [section] if colon else [here[0], ""]:
        if lookup(candidate, key) is not None:
            return candidate, key
    raise MissingReference(f"{shown(here)} refers to {name!r}, which is not there")
