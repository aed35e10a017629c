import asyncio

import pytest

from asyncpipe import RateLimiter, VirtualClock, run_all


def virtual(main):
    clock = VirtualClock()
    return asyncio.run(clock.run(main(clock)))


async def cancel_after(clock, seconds, coroutine):
    task = asyncio.ensure_future(coroutine)
    await clock.sleep(seconds)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_burst_then_rate():
    async def main(clock):
        limiter, times = RateLimiter(2, 3, clock=clock), []
        for _ in range(6):
            await limiter.acquire()
            times.append(clock.now())
        return times

    assert virtual(main) == [0, 0, 0, 0.5, 1, 1.5]


def test_bucket_holds_no_more_than_the_burst():
    async def main(clock):
        limiter = RateLimiter(1, 4, clock=clock)
        await limiter.acquire(3)
        await clock.sleep(2)
        partly = limiter.available
        await clock.sleep(50)
        return partly, limiter.available

    assert virtual(main) == (3, 4)


def test_served_in_order_of_arrival():
    async def main(clock):
        limiter, served = RateLimiter(1, 4, clock=clock), []

        async def client(name, tokens):
            await limiter.acquire(tokens)
            served.append((name, clock.now()))

        await run_all(client("a", 4), client("b", 3), client("c", 1), client("d", 1))
        return served

    assert virtual(main) == [("a", 0), ("b", 3), ("c", 4), ("d", 5)]


@pytest.mark.parametrize("last", [0, 1, 2])
def test_cancelled_clients_pass_their_turn_on(last):
    async def main(clock):
        limiter = RateLimiter(1, 1, clock=clock)
        await limiter.acquire()
        tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(4)]
        await clock.sleep(0)
        for task in tasks[1 : 1 + last]:
            task.cancel()
        await asyncio.wait(tasks)
        return clock.now()

    assert virtual(main) == 4 - last


def test_refused_arguments():
    async def main(clock):
        with pytest.raises(ValueError):
            RateLimiter(0, clock=clock)
        with pytest.raises(ValueError):
            await RateLimiter(1, 2, clock=clock).acquire(3)

    virtual(main)


def test_cancelled_wait_takes_no_tokens():
    async def main(clock):
        limiter = RateLimiter(1, 4, clock=clock)
        await limiter.acquire(3)
        await cancel_after(clock, 1, limiter.acquire(4))
        left = limiter.available
        await limiter.acquire(3)
        return left, clock.now(), limiter.available

    assert virtual(main) == (2, 2, 0)


def test_timeouts_do_not_slow_down_those_who_wait():
    async def main(clock):
        limiter, served = RateLimiter(1, 2, clock=clock), []

        async def client():
            await limiter.acquire(2)
            served.append(clock.now())

        await limiter.acquire(2)
        impatient = asyncio.ensure_future(limiter.acquire(2))
        clients = [asyncio.ensure_future(client()) for _ in range(2)]
        await clock.sleep(1)
        impatient.cancel()
        await run_all(*clients)
        return served

    assert virtual(main) == [2, 4]


def test_bucket_fills_up_after_cancelled_waits():
    async def main(clock):
        limiter = RateLimiter(1, 4, clock=clock)
        await limiter.acquire(4)
        for _ in range(3):
            await cancel_after(clock, 0.5, limiter.acquire(4))
        await clock.sleep(2.5)
        full = limiter.available
        await limiter.acquire(4)
        return full, clock.now(), limiter.available

    assert virtual(main) == (4, 4, 0)
