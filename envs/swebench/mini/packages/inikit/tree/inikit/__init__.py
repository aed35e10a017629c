"""Read, change and write INI-like configuration files without losing their comments."""

from inikit.config import Config, load, loads
from inikit.errors import (
    ConversionError,
    IniError,
    InterpolationError,
    MissingKey,
    MissingReference,
    ParseError,
    ReferenceCycle,
)
from inikit.interpolation import escape

__all__ = ["Config", "ConversionError", "IniError", "InterpolationError", "MissingKey", "MissingReference"]
__all__ += ["ParseError", "ReferenceCycle", "escape", "load", "loads"]
