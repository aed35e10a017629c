"""Bounded asyncio pipelines, rate limits, retries and broadcasts that leave no task behind."""

from .broadcast import Broadcast, Closed, Subscription
from .clock import Clock, VirtualClock
from .group import reap, run_all
from .limiter import RateLimiter
from .pipeline import Pipeline
from .retry import Backoff, RetriesExhausted, retry

__all__ = ["Backoff", "Broadcast", "Clock", "Closed", "Pipeline", "RateLimiter", "RetriesExhausted", "Subscription"]
__all__ += ["VirtualClock", "reap", "retry", "run_all"]
