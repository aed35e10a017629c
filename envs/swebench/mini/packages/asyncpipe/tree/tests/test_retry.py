import asyncio

import pytest

from asyncpipe import Backoff, RetriesExhausted, VirtualClock, retry


class Flaky:
    """Fails as often as it is told to, then returns how often it was called."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.calls


def run(func, **options):
    """Result, or the error, and the pauses."""
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)

    async def main():
        try:
            return await retry(func, sleep=sleep, **options)
        except Exception as error:
            return error

    return asyncio.run(main()), pauses


def test_pauses_grow():
    assert run(Flaky()) == (1, [])
    errors = [KeyError(n) for n in range(4)]
    assert run(Flaky(*errors), attempts=9, backoff=Backoff(base=1, factor=3, limit=20)) == (5, [1, 3, 9, 20])
    assert Backoff(base=0.5, factor=2.0, limit=60).pause(5000) == 60


def test_retry_after_asks_for_a_longer_pause():
    first, second = KeyError(), KeyError()
    first.retry_after, second.retry_after = 7, 1
    assert run(Flaky(first, second), backoff=Backoff(base=2, factor=2)) == (3, [7, 4])


def test_other_errors_are_raised_at_once():
    error = KeyError("x")
    assert run(Flaky(ValueError(), error), on=(ValueError, OSError), backoff=Backoff(base=1)) == (error, [1])


def test_all_errors_are_reported():
    errors = [KeyError(1), KeyError(2)]
    result, _ = run(Flaky(*errors), attempts=2)
    assert isinstance(result, RetriesExhausted)
    assert result.errors == errors
    assert result.__cause__ is errors[1]


def test_cancellation_is_no_failure():
    clock = VirtualClock()
    calls = []

    async def call():
        calls.append(clock.now())
        await clock.sleep(10)

    async def main():
        task = asyncio.ensure_future(retry(call, sleep=clock.sleep))
        await clock.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(clock.run(main()))
    assert (calls, clock.now()) == ([0], 1)


def test_notify_hears_of_each_pause():
    seen, error = [], KeyError("x")
    run(Flaky(error), backoff=Backoff(base=2), notify=lambda *args: seen.append(args))
    assert seen == [(1, error, 2)]


def test_no_pause_after_the_last_attempt():
    func = Flaky(*[KeyError(n) for n in range(9)])
    result, pauses = run(func, attempts=3, backoff=Backoff(base=1))
    assert (len(result.errors), func.calls, pauses) == (3, 3, [1, 2])


def test_single_attempt_never_pauses():
    result, pauses = run(Flaky(KeyError()), attempts=1)
    assert isinstance(result, RetriesExhausted)
    assert pauses == []


def test_notify_does_not_hear_of_the_last_failure():
    seen = []
    run(Flaky(*map(KeyError, range(9))), attempts=3, notify=lambda failures, *_: seen.append(failures))
    assert seen == [1, 2]


def test_exhausted_as_soon_as_the_last_attempt_failed():
    clock = VirtualClock()

    async def main():
        with pytest.raises(RetriesExhausted):
            await retry(Flaky(OSError(), OSError()), attempts=2, backoff=Backoff(base=8), sleep=clock.sleep)
        return clock.now()

    assert asyncio.run(clock.run(main())) == 8
