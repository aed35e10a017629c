"""One stream of items for many readers."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any


class Closed(Exception):
    """The channel or the subscription has been closed."""


class _Signal:
    """Wakes all who wait for it."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    async def wait(self) -> None:
        woken = asyncio.get_running_loop().create_future()
        self._waiting.add(woken)
        try:
            await woken
        finally:
            self._waiting.discard(woken)

    def send(self) -> None:
        for woken in self._waiting:
            if not woken.done():
                woken.set_result(None)


class Broadcast:
    """A channel that gives each item to every subscriber, to all in the same order.

    To be made and used in one event loop. `replay` items are kept for those who subscribe later.
    """

    def __init__(self, *, replay: int = 0) -> None:
        self.closed = False
        self._subscriptions: list[Subscription] = []
        self._past: deque[Any] = deque(maxlen=replay)
        self._turn = asyncio.Lock()
        self._room = _Signal()

    def subscribe(self, *, buffer: int = 16) -> Subscription:
        """Read what is published from now on, after the last items that the channel keeps.

        Args:
            buffer: how many items may lie unread before `publish` waits; of the past items it gets the newest that fit.

        Raises:
            Closed: the channel is closed.
            ValueError: `buffer` is less than 1.
        """
        if self.closed:
            raise Closed("the channel is closed")
        if buffer < 1:
            raise ValueError("buffer must be at least 1")
        subscription = Subscription(self, buffer)
        subscription._items.extend(list(self._past)[-buffer:])
        self._subscriptions.append(subscription)
        return subscription

    async def publish(self, item: Any) -> None:
        """Give an item to all subscribers, once each of them has room for it.

        Nobody gets the item if the call is cancelled or raises.

        Raises:
            Closed: the channel is closed, or was while waiting.
        """
        async with self._turn:
            while not self.closed and any(subscription._full for subscription in self._subscriptions):
                await self._room.wait()
            if self.closed:
                raise Closed("the channel is closed")
            self._past.append(item)
            for subscription in self._subscriptions:
                subscription._put(item)

    def close(self) -> None:
        """End the stream: subscribers still read what lies in their buffers. A second call does nothing."""
        self.closed = True
        self._room.send()
        for subscription in self._subscriptions:
            subscription._arrived.send()


class Subscription:
    """What one reader has not read yet. Iterate over it, or call `get`; `async with` closes it."""

    def __init__(self, channel: Broadcast, buffer: int) -> None:
        self._channel = channel
        self._buffer = buffer
        self._closed = False
        self._items: deque[Any] = deque()
        self._arrived = _Signal()

    async def get(self) -> Any:
        """The next item.

        Raises:
            Closed: there is none, and there will be none.
        """
        while not self._items:
            if self._closed or self._channel.closed:
                raise Closed("no more items")
            await self._arrived.wait()
        self._channel._room.send()
        return self._items.popleft()

    def close(self) -> None:
        """Stop reading: what lies unread is dropped, and `publish` no longer waits for it."""
        self._closed = True
        self._items.clear()
        if self in self._channel._subscriptions:
            self._channel._subscriptions.remove(self)
        self._channel._room.send()
        self._arrived.send()

    @property
    def _full(self) -> bool:
        return len(self._items) >= self._buffer

    def _put(self, item: Any) -> None:
        self._items.append(item)
        self._arrived.send()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.get()
        except Closed:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
