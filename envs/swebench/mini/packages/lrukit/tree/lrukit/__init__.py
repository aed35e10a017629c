"""Caches by recency, weight and age; memoised functions; a write-through cache. For one thread, and re-entrant."""

from lrukit.backed import WriteThrough
from lrukit.lru import LRU, TooHeavy
from lrukit.memo import memoize
from lrukit.stats import Stats
from lrukit.ttl import TTLCache

__all__ = ["LRU", "Stats", "TTLCache", "TooHeavy", "WriteThrough", "memoize"]
