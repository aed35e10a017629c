"""The cache that the others are made of: entries in order of their last use, within limits.

Invariant: whenever foreign code runs (`weigh`, `on_evict`), entries, weight and order agree, so it may call any method.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from lrukit.stats import Stats

MISSING: Any = object()
"""Stands for no value, since a value may be anything."""


class TooHeavy(ValueError):
    """An entry is heavier than the whole cache may be."""


class LRU:
    """A cache that drops what was not used for longest.

    `max_items` and `max_weight` are its limits, None for no limit. An entry weighs `weigh(key, value)`, 1 by default.
    `on_evict(key, value)` is called once for each entry that had to go for others (not for one that was replaced or
    deleted), after the limits hold again. What it evicts in turn is reported after those that wait already. If it
    raises, the error comes out, and those that still wait are reported by the next store.
    """

    def __init__(
        self,
        max_items: int | None = None,
        *,
        max_weight: int | None = None,
        weigh: Callable[[Any, Any], int] = lambda key, value: 1,
        on_evict: Callable[[Any, Any], object] = lambda key, value: None,
    ) -> None:
        if any(limit is not None and limit <= 0 for limit in (max_items, max_weight)):
            raise ValueError("limits must be positive")
        self.max_items = max_items
        self.max_weight = max_weight
        self.weight = 0
        self.stats = Stats()
        self._weigh = weigh
        self._on_evict = on_evict
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._evicted: deque[tuple[Hashable, Any]] = deque()
        self._reporting = False

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[Any]:
        """The keys there are now, least recently used first; the cache may change meanwhile."""
        return iter(list(self._entries))

    def __getitem__(self, key: Hashable) -> Any:
        value = self.get(key, MISSING)
        if value is MISSING:
            raise KeyError(key)
        return value

    def get(self, key: Hashable, default: Any = None) -> Any:
        """The value of a key, which becomes the most recent one."""
        if key not in self._entries:
            self.stats.misses += 1
            return default
        self.stats.hits += 1
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def peek(self, key: Hashable, default: Any = None) -> Any:
        """The value of a key; this use of it does not count."""
        return self._entries[key][0] if key in self._entries else default

    def __setitem__(self, key: Hashable, value: Any) -> None:
        if not self.offer(key, value):
            raise TooHeavy(f"the entry {key!r} is heavier than {self.max_weight}")

    def offer(self, key: Hashable, value: Any) -> bool:
        """Store an entry unless it is too heavy, and say whether it was stored."""
        weight = self._weigh(key, value)
        if weight < 0:
            raise ValueError("weights cannot be negative")
        if self.max_weight is not None and weight > self.max_weight:
            return False
        self.pop(key, None)
        self._entries[key] = value, weight
        self.weight += weight
        self._shrink()
        return True

    def __delitem__(self, key: Hashable) -> None:
        if self.pop(key, MISSING) is MISSING:
            raise KeyError(key)

    def pop(self, key: Hashable, default: Any = None) -> Any:
        """Remove an entry if it is there; its value or the default."""
        value, weight = self._entries.pop(key, (default, 0))
        self.weight -= weight
        return value

    def clear(self) -> None:
        """Remove all entries; none of them is evicted."""
        self._entries.clear()
        self.weight = 0

    def full(self) -> bool:
        """Whether one more entry is one too many."""
        return self.max_items is not None and len(self._entries) >= self.max_items

    def _over(self) -> bool:
        return (self.max_items is not None and len(self._entries) > self.max_items) or (
            self.max_weight is not None and self.weight > self.max_weight
        )

    def _shrink(self) -> None:
        """Evict until the limits hold, then report; within a report, leave the reporting to it."""
        while self._over():
            key, (value, weight) = self._entries.popitem(last=False)
            self.weight -= weight
            self.stats.evictions += 1
            self._evicted.append((key, value))
        if self._reporting:
            return
        self._reporting = True
        try:
            while self._evicted:
                self._on_evict(*self._evicted.popleft())
        finally:
            self._reporting = False
