"""Functions that remember their results."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from lrukit.lru import LRU, MISSING
from lrukit.stats import Stats


def memoize(
    function: Callable[..., Any] | None = None,
    *,
    max_items: int | None = 128,
    typed: bool = False,
    tags: Callable[..., Iterable[Hashable]] = lambda *args, **kwargs: (),
) -> Any:
    """Decorator, with or without options: the function remembers its `max_items` most recently used results.

    Its arguments must be hashable. With `typed`, arguments of different types are different even if they are equal,
    in tuples too. `tags` gets the arguments of a call and gives the tags by which its result can be invalidated.
    """
    if function is None:
        return functools.partial(memoize, max_items=max_items, typed=typed, tags=tags)
    return functools.update_wrapper(Memoized(function, max_items, typed, tags), function)


@dataclass(eq=False)
class _Call:
    """A call that is running; `outdated` once its result has been invalidated."""

    key: Hashable
    tags: frozenset[Hashable]
    outdated: bool = False


class Memoized:
    """What `memoize` makes of a function. Calls may nest, and invalidate what they like while they run."""

    def __init__(
        self, function: Callable[..., Any], max_items: int | None, typed: bool, tags: Callable[..., Iterable[Hashable]]
    ) -> None:
        self._function = function
        self._signature = inspect.signature(function)
        self._typed = typed
        self._tags = tags
        self._results = LRU(max_items, on_evict=lambda key, result: self._untag(key))
        self._tags_of: dict[Hashable, frozenset[Hashable]] = {}
        self._tagged: dict[Hashable, set[Hashable]] = {}
        self._running: list[_Call] = []

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    @property
    def stats(self) -> Stats:
        return self._results.stats

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        key = self._key(args, kwargs)
        result = self._results.get(key, MISSING)
        if result is not MISSING:
            return result
        call = _Call(key, frozenset(self._tags(*args, **kwargs)))
        self._running.append(call)
        try:
            result = self._function(*args, **kwargs)
        finally:
            self._running.remove(call)
        if not call.outdated:
            self._keep(key, result, call.tags)
        return result

    def invalidate(self, *args: Any, **kwargs: Any) -> bool:
        """Forget the result of a call with these arguments, and say whether there was one."""
        key = self._key(args, kwargs)
        self._outdate(lambda call: call.key == key)
        return self._drop(key)

    def invalidate_tag(self, tag: Hashable) -> int:
        """Forget all results with a tag, and say how many there were."""
        self._outdate(lambda call: tag in call.tags)
        return sum(self._drop(key) for key in list(self._tagged.get(tag, ())))

    def clear(self) -> None:
        """Forget everything but the statistics."""
        self._outdate(lambda call: True)
        self._results.clear()
        self._tags_of.clear()
        self._tagged.clear()

    def _outdate(self, concerned: Callable[[_Call], bool]) -> None:
        for call in self._running:
            call.outdated = call.outdated or concerned(call)

    def _keep(self, key: Hashable, result: Any, tags: frozenset[Hashable]) -> None:
        self._drop(key)
        self._tags_of[key] = tags
        for tag in tags:
            self._tagged.setdefault(tag, set()).add(key)
        self._results[key] = result

    def _drop(self, key: Hashable) -> bool:
        self._untag(key)
        return self._results.pop(key, MISSING) is not MISSING

    def _untag(self, key: Hashable) -> None:
        for tag in self._tags_of.pop(key, ()):
            self._tagged[tag].remove(key)
            if not self._tagged[tag]:
                del self._tagged[tag]

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
        """One key for one call, however its arguments are passed."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = []
        for name, value in bound.arguments.items():
            if self._signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                value = tuple(sorted(value.items()))
            values.append(_typed(value) if self._typed else value)
        return tuple(values)


def _typed(value: Any) -> Hashable:
    return (type(value), tuple(map(_typed, value)) if isinstance(value, tuple) else value)
