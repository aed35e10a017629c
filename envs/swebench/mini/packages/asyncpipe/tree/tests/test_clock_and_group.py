import asyncio

import pytest

from asyncpipe import VirtualClock, reap, run_all


def virtual(main):
    clock = VirtualClock()
    return asyncio.run(clock.run(main(clock)))


def test_sleepers_wake_by_deadline():
    async def main(clock):
        woken = []

        async def sleeper(name, seconds):
            await clock.sleep(seconds)
            woken.append((name, clock.now()))

        await run_all(sleeper("a", 3), sleeper("b", 1), sleeper("c", 3), sleeper("d", 0))
        return woken

    assert virtual(main) == [("d", 0), ("b", 1), ("a", 3), ("c", 3)]


def test_cancelled_sleeper_does_not_move_the_clock():
    async def main(clock):
        sleeper = asyncio.ensure_future(clock.sleep(100))
        await clock.sleep(1)
        sleeper.cancel()
        await clock.sleep(1)
        return clock.now()

    assert virtual(main) == 2


def test_clock_tells_when_everything_waits():
    async def main(clock):
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError):
        virtual(main)


def test_run_raises_what_the_coroutine_raises():
    async def main(clock):
        await clock.sleep(1)
        raise KeyError("x")

    with pytest.raises(KeyError):
        virtual(main)


def test_run_all_gives_results_in_order():
    async def main(clock):
        async def slow(seconds):
            await clock.sleep(seconds)
            return seconds

        return await run_all(slow(3), slow(1), slow(2)), await run_all()

    assert virtual(main) == ([3, 1, 2], [])


def test_run_all_ends_the_others_at_the_first_error():
    async def main(clock):
        before, ended = asyncio.all_tasks(), []

        async def slow():
            try:
                await clock.sleep(100)
            finally:
                await clock.sleep(1)
                ended.append(clock.now())

        async def failing():
            await clock.sleep(5)
            raise KeyError("x")

        with pytest.raises(KeyError):
            await run_all(slow(), failing(), slow())
        return ended, asyncio.all_tasks() - before

    assert virtual(main) == ([6, 6], set())


def test_run_all_ends_all_when_it_is_cancelled():
    async def main(clock):
        before = asyncio.all_tasks()
        task = asyncio.ensure_future(run_all(clock.sleep(50), clock.sleep(60)))
        await clock.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return clock.now(), asyncio.all_tasks() - before

    assert virtual(main) == (1, set())


def test_reap_passes_over_errors_and_ended_tasks():
    async def main(clock):
        async def failing():
            raise KeyError("x")

        tasks = [asyncio.ensure_future(failing()), asyncio.ensure_future(clock.sleep(9))]
        await clock.sleep(1)
        await reap(tasks)
        await reap([])
        return [task.done() for task in tasks], clock.now()

    assert virtual(main) == ([True, True], 1)


def test_reap_goes_on_when_it_is_cancelled():
    async def main(clock):
        ended = []

        async def slow(seconds):
            try:
                await clock.sleep(100)
            finally:
                await clock.sleep(seconds)
                ended.append(clock.now())

        tasks = [asyncio.ensure_future(slow(4)), asyncio.ensure_future(slow(6))]
        await clock.sleep(1)
        reaping = asyncio.ensure_future(reap(tasks))
        for _ in range(2):
            await clock.sleep(1)
            reaping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reaping
        return ended, clock.now()

    assert virtual(main) == ([5, 7], 7)


def test_run_all_waits_for_cleanup_when_it_is_cancelled_again():
    async def main(clock):
        before, ended = asyncio.all_tasks(), []

        async def slow():
            try:
                await clock.sleep(100)
            finally:
                await clock.sleep(5)
                ended.append(clock.now())

        task = asyncio.ensure_future(run_all(slow(), slow()))
        for _ in range(3):
            await clock.sleep(1)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return ended, asyncio.all_tasks() - before

    assert virtual(main) == ([6, 6], set())
