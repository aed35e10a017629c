"""One stream of items for many readers."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any


class Closed(Exception):
    """The channel or the subscription has been closed."""


class Broadcast:
    """A channel that gives each item to every subscriber, to all in the same order.

    To be made and used in one event loop. `replay` items are kept for those who subscribe later.
    """

    def __init__(self, *, replay: int = 0) -> None:
        self.closed = False
        self._subscriptions: list[Subscription] = []
        self._past: deque[Any] = deque(maxlen=replay)
        self._turn = asyncio.Lock()
        self._room = asyncio.Event()

    def subscribe(self, *, buffer: int = 16) -> Subscription:
        """Read what is published from now on, after the last items that the channel keeps.

        Args:
            buffer: how many items may lie unread before `publish` waits; of the past items it gets the newest that fit.

        Raises:
            ValueError: `buffer` is less than 1.
        """
        if buffer < 1:
            raise ValueError("buffer must be at least 1")
        self._subscriptions.append(Subscription(self, buffer, list(self._past)[-buffer:]))
        return self._subscriptions[-1]

    async def publish(self, item: Any) -> None:
        """Give an item to all subscribers, once each of them has room for it.

        Nobody gets the item if the call is cancelled or raises.

        Raises:
            Closed: the channel is closed, or was while waiting.
        """
        async with self._turn:
            while not self.closed and any(subscription._full for subscription in self._subscriptions):
                self._room.clear()
                await self._room.wait()
            if self.closed:
                raise Closed("the channel is closed")
            self._past.append(item)
            for subscription in self._subscriptions:
                subscription._put(item)

    def close(self) -> None:
        """End the stream: subscribers still read what lies in their buffers. A second call does nothing."""
        self.closed = True
        self._room.set()
        for subscription in self._subscriptions:
            subscription._changed.set()


class Subscription:
    """What one reader has not read yet. Iterate over it, or call `get`."""

    def __init__(self, channel: Broadcast, buffer: int, items: list[Any]) -> None:
        self._channel = channel
        self._buffer = buffer
        self._closed = False
        self._items = deque(items)
        self._changed = asyncio.Event()

    async def get(self) -> Any:
        """The next item.

        Raises:
            Closed: there is none, and there will be none.
        """
        while not self._items:
            if self._closed or self._channel.closed:
                raise Closed("no more items")
            self._changed.clear()
            await self._changed.wait()
        self._channel._room.set()
        return self._items.popleft()

    def close(self) -> None:
        """Stop reading: what lies unread is dropped, and `publish` no longer waits for it."""
        self._closed = True
        self._items.clear()
        if self in self._channel._subscriptions:
            self._channel._subscriptions.remove(self)
        self._channel._room.set()
        self._changed.set()

    @property
    def _full(self) -> bool:
        return len(self._items) >= self._buffer

    def _put(self, item: Any) -> None:
        self._items.append(item)
        self._changed.set()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.get()
        except Closed:
            raise StopAsyncIteration from None
