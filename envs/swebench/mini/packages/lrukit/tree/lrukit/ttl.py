"""A cache whose entries also grow old."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

from lrukit.lru import LRU


class _Entry(NamedTuple):
    value: Any
    deadline: float


class TTLCache:
    """An `LRU` whose entries expire when their age reaches `ttl_s`, as `clock` has it, in seconds.

    An expired entry is as good as gone. A full cache drops expired entries first, which are not reported to
    `on_evict`, and evicts the least recently used one only if there are none.
    """

    def __init__(
        self,
        ttl_s: float,
        max_items: int | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_evict: Callable[[Any, Any], object] = lambda key, value: None,
    ) -> None:
        self.ttl_s = ttl_s
        self._clock = clock
        self._entries = LRU(max_items, on_evict=lambda key, entry: on_evict(key, entry.value))
        self.stats = self._entries.stats

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries and not self._expired(key)

    def __iter__(self) -> Iterator[Any]:
        """The keys of what has not expired, least recently used first."""
        return iter([key for key in self._entries if not self._expired(key)])

    def __getitem__(self, key: Hashable) -> Any:
        if key in self._entries and self._expired(key):
            self._drop(key)
        return self._entries[key].value

    def get(self, key: Hashable, default: Any = None) -> Any:
        """The value of a key, which becomes the most recent one."""
        try:
            return self[key]
        except KeyError:
            return default

    def __setitem__(self, key: Hashable, value: Any) -> None:
        self.put(key, value)

    def put(self, key: Hashable, value: Any, ttl_s: float | None = None) -> None:
        """Store an entry that lives for `ttl_s` from now, as long as any other by default."""
        ttl_s = self.ttl_s if ttl_s is None else ttl_s
        if key not in self._entries and self._entries.full():
            self.purge()
        self._entries[key] = _Entry(value, self._clock() + ttl_s)

    def pop(self, key: Hashable, default: Any = None) -> Any:
        """Remove an entry; its value, or the default if there is none or it has expired."""
        live = key in self
        entry = self._entries.pop(key)
        return entry.value if live else default

    def purge(self) -> int:
        """Drop what has expired, and say how many entries that were."""
        expired = [key for key in self._entries if self._expired(key)]
        for key in expired:
            self._drop(key)
        return len(expired)

    def _expired(self, key: Hashable) -> bool:
        return self._clock() >= self._entries.peek(key).deadline

    def _drop(self, key: Hashable) -> None:
        del self._entries[key]
        self.stats.expirations += 1
