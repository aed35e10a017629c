"""A cache in front of a mapping that holds the truth."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, MutableMapping
from typing import Any

from lrukit.lru import LRU, MISSING
from lrukit.stats import Stats


class WriteThrough(MutableMapping[Any, Any]):
    """A mapping that keeps what was last used of another one, `backing`, and writes to it at once.

    Options are those of `LRU`; an entry too heavy for the cache is stored in `backing` only. If `backing` refuses a
    write, its error comes out and the next read asks `backing` again. Keys that others changed in `backing` must be
    forgotten with `forget`.
    """

    def __init__(self, backing: MutableMapping[Any, Any], max_items: int | None = None, **options: Any) -> None:
        self.backing = backing
        self._cache = LRU(max_items, **options)

    @property
    def stats(self) -> Stats:
        return self._cache.stats

    def __len__(self) -> int:
        return len(self.backing)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.backing)

    def __contains__(self, key: object) -> bool:
        return key in self._cache or key in self.backing

    def __getitem__(self, key: Hashable) -> Any:
        value = self._cache.get(key, MISSING)
        if value is MISSING:
            value = self.backing[key]
            self._cache.offer(key, value)
        return value

    def __setitem__(self, key: Hashable, value: Any) -> None:
        self.forget(key)
        self.backing[key] = value
        self._cache.offer(key, value)

    def __delitem__(self, key: Hashable) -> None:
        self.forget(key)
        del self.backing[key]

    def cached(self) -> list[Any]:
        """Keys that need no look into `backing`, least recently used first."""
        return list(self._cache)

    def forget(self, key: Hashable) -> None:
        """Drop a key from the cache, not from `backing`."""
        self._cache.pop(key)
