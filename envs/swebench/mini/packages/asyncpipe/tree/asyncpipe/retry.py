"""Calls that are made again when they fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Optional


@dataclass(frozen=True)
class Backoff:
    """Pauses that grow: `base` seconds after the first failure, then `factor` times the pause before, up to `limit`."""

    base: float = 0.5
    factor: float = 2.0
    limit: float = 30.0

    def pause(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row, at least one."""
        try:
            return min(self.limit, self.base * self.factor ** (failures - 1))
        except OverflowError:
            return self.limit


class RetriesExhausted(Exception):
    """All attempts failed. `errors` has what each of them raised, and the last is the cause."""

    def __init__(self, errors: list[Exception]) -> None:
        super().__init__(f"{len(errors)} attempts failed, the last with {errors[-1]!r}")
        self.errors = errors


async def retry(
    func: Callable[[], Awaitable[Any]],
    *,
    attempts: int = 3,
    on: tuple[type[Exception], ...] = (Exception,),
    backoff: Backoff = Backoff(),
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    notify: Optional[Callable[[int, Exception, float], None]] = None,
) -> Any:
    """Result of the first call that does not fail.

    Args:
        attempts: how many calls are made at most, at least one.
        on: errors after which to call again. Others are raised at once, as they are.
        backoff: pauses between two calls. An error with an attribute `retry_after` asks for a pause that is not shorter.
        notify: called before each pause with the number of failures so far, the error, and the pause.

    Raises:
        RetriesExhausted: the last attempt failed, too; raised at once, without a pause.
    """
    errors: list[Exception] = []
    while True:
        try:
            return await func()
        except on as error:
            errors.append(error)
        if len(errors) >= attempts:
            raise RetriesExhausted(errors) from errors[-1]
        pause = max(backoff.pause(len(errors)), getattr(errors[-1], "retry_after", 0.0))
        if notify is not None:
            notify(len(errors), errors[-1], pause)
        await sleep(pause)
