"""Sets of integers, and mappings from integers, kept as half-open intervals."""

from rangeset.interval import Interval
from rangeset.maps import RangeMap
from rangeset.sets import RangeSet

__all__ = ["Interval", "RangeMap", "RangeSet"]
