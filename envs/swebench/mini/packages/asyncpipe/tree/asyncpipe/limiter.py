"""A rate limiter."""

from __future__ import annotations

import asyncio
from collections import deque

from .clock import Clock


class RateLimiter:
    """A token bucket: it holds `burst` tokens at most, is full at first, and gains `rate` tokens per second.

    First come, first served: nobody overtakes those who wait, however few tokens they want. Who is cancelled while
    waiting takes no tokens.

    Raises:
        ValueError: `rate` or `burst` is not positive.
    """

    def __init__(self, rate: float, burst: float = 1, *, clock: Clock) -> None:
        if rate <= 0 or burst <= 0:
            raise ValueError("rate and burst must be positive")
        self.rate = rate
        self.burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._filled_at = clock.now()
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def available(self) -> float:
        """Tokens in the bucket now."""
        now = self._clock.now()
        self._tokens = min(self.burst, self._tokens + (now - self._filled_at) * self.rate)
        self._filled_at = now
        return self._tokens

    async def acquire(self, tokens: float = 1) -> None:
        """Take tokens, and wait for them if need be.

        Raises:
            ValueError: more tokens than the bucket holds.
        """
        if tokens > self.burst:
            raise ValueError(f"{tokens} tokens of a bucket for {self.burst}")
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            if self._queue[0] is not turn:
                await turn
            missing = tokens - self.available
            if missing > 0:
                await self._clock.sleep(missing / self.rate)
            # Not checked again: rounding may leave a trace of a token missing, and nobody else takes any meanwhile.
            self._tokens = self.available - tokens
        finally:
            self._leave(turn)

    def _leave(self, turn: asyncio.Future[None]) -> None:
        first = self._queue[0] is turn
        self._queue.remove(turn)
        # Done: it has been cancelled, and passes the turn on itself.
        if first and self._queue and not self._queue[0].done():
            self._queue[0].set_result(None)
