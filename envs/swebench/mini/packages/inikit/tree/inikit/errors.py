"""What can be wrong with a configuration."""

from __future__ import annotations


class IniError(Exception):
    """Base of all errors of this package."""


class ParseError(IniError, ValueError):
    """The text does not follow the format; `line` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line


class MissingKey(IniError, KeyError):
    """A key was asked for that is not there, and no default was given."""


class ConversionError(IniError, ValueError):
    """A value is not of the type that was asked for."""


class InterpolationError(IniError, ValueError):
    """A value cannot be expanded."""


class MissingReference(InterpolationError):
    """A value refers to a key that is not there."""


class ReferenceCycle(InterpolationError):
    """A value refers to itself; `path` is the way round, its first place repeated at the end."""

    def __init__(self, path: tuple[str, ...]) -> None:
        super().__init__("values refer to each other: " + " -> ".join(path))
        self.path = path
