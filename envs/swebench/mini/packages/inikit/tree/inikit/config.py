"""The configuration as a program sees it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inikit.errors import ConversionError, MissingKey
from inikit.interpolation import expand, shown
from inikit.quoting import BLANK
from inikit.syntax import is_key, is_section, parse, render

REQUIRED: Any = object()
"""Default of a getter that was given none."""

_BOOLEANS = {"1": True, "yes": True, "true": True, "on": True, "0": False, "no": False, "false": False, "off": False}


class Config:
    """Values by section and key. Keys above the first header have the section `""`."""

    def __init__(self, text: str = "") -> None:
        self._document = parse(text)
        self._expanded: dict[tuple[str, str], str] = {}

    def sections(self) -> list[str]:
        """Names of the sections with a header, in the order of the file."""
        return [name for name in self._document.sections if name]

    def keys(self, section: str) -> list[str]:
        """Keys of a section as they are spelled, in the order of the file."""
        found = self._document.sections.get(section)
        return [entry.key for entry in found.entries()] if found else []

    def get(self, section: str, key: str, default: Any = REQUIRED, raw: bool = False) -> Any:
        """The text of a value, expanded unless `raw`; `default` if there is no such key.

        Raises:
            MissingKey: no such key, and no default.
            InterpolationError: it cannot be expanded; a default does not change that.
        """
        text = self._raw(section, key)
        if text is None and default is REQUIRED:
            raise MissingKey(f"no key {shown((section, key))}")
        if text is None or raw:
            return default if text is None else text
        here = (section, key.casefold())
        if here not in self._expanded:
            self._expanded[here] = expand(self._raw, section, key)
        return self._expanded[here]

    def get_int(self, section: str, key: str, default: Any = REQUIRED) -> Any:
        return self._converted(section, key, default, int)

    def get_float(self, section: str, key: str, default: Any = REQUIRED) -> Any:
        return self._converted(section, key, default, float)

    def get_bool(self, section: str, key: str, default: Any = REQUIRED) -> Any:
        """1, yes, true, on are true and 0, no, false, off are false, in any case."""
        return self._converted(section, key, default, _to_bool)

    def get_list(self, section: str, key: str, default: Any = REQUIRED) -> Any:
        """Items between commas or on lines of their own; blanks around them and empty items are dropped."""
        return self._converted(section, key, default, _to_list)

    def set(self, section: str, key: str, value: str) -> None:
        """Change a value or add one; `$` in it is a reference, see `escape`.

        Raises:
            ValueError: the key or the name of the section cannot be written to a file.
        """
        if not is_key(key) or (section and not is_section(section)):
            raise ValueError(f"cannot be written to a file: {shown((section, key))!r}")
        self._document.section(section).put(key, value)
        self._expanded.clear()

    def remove(self, section: str, key: str) -> bool:
        """Take a key out; false if there is none."""
        found = self._document.sections.get(section)
        removed = found is not None and found.remove(key)
        self._expanded.clear()
        return removed

    def dumps(self) -> str:
        """The text of the file; what was not changed is as it was read."""
        return render(self._document)

    def dump(self, path: str | os.PathLike[str]) -> None:
        """Write the file, in UTF-8 and with the line ends that it had."""
        Path(path).write_bytes(self.dumps().encode("utf-8"))

    def _raw(self, section: str, key: str) -> str | None:
        found = self._document.sections.get(section)
        entry = found.find(key) if found else None
        return entry.value if entry else None

    def _converted(self, section: str, key: str, default: Any, convert: Callable[[str], Any]) -> Any:
        """A value of another type; `ConversionError` if its text does not give one."""
        if default is not REQUIRED and self._raw(section, key) is None:
            return default
        text = self.get(section, key)
        try:
            return convert(text)
        except ValueError as error:
            raise ConversionError(f"{shown((section, key))}: {error}") from error


def loads(text: str) -> Config:
    """Read a configuration from text."""
    return Config(text)


def load(path: str | os.PathLike[str]) -> Config:
    """Read a file in UTF-8."""
    return Config(Path(path).read_bytes().decode("utf-8"))


def _to_bool(text: str) -> bool:
    if text.casefold() not in _BOOLEANS:
        raise ValueError(f"not a boolean: {text!r}")
    return _BOOLEANS[text.casefold()]


def _to_list(text: str) -> list[str]:
    items = (item.strip(BLANK) for item in text.replace("\n", ",").split(","))
    return [item for item in items if item]
