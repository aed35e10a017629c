import asyncio

import pytest

from asyncpipe import Pipeline, VirtualClock


def virtual(main):
    clock = VirtualClock()
    return asyncio.run(clock.run(main(clock)))


async def numbers(closed):
    """The numbers below 50; how many were read is noted when it ends."""
    read = 0
    try:
        for n in range(50):
            read += 1
            yield n
    finally:
        closed.append(read)


def sleeping(clock, ended=None, cleanup=0):
    """A function that sleeps for as many seconds as its argument says, and cleans up when it is cancelled."""

    async def sleep(seconds):
        try:
            await clock.sleep(seconds)
        except asyncio.CancelledError:
            await clock.sleep(cleanup)
            if ended is not None:
                ended.append(clock.now())
            raise
        return seconds

    return sleep


def test_results_keep_the_order_of_the_source():
    async def main(clock):
        results = await Pipeline().map(sleeping(clock), workers=3).collect([3, 1, 2, 1])
        return results, clock.now()

    assert virtual(main) == ([3, 1, 2, 1], 3)


def test_unordered_results_come_as_they_are_done():
    async def main(clock):
        return await Pipeline(ordered=False).map(sleeping(clock), workers=3).collect([3, 1, 2, 4])

    assert virtual(main) == [1, 2, 3, 4]


def test_functions_and_sources_may_be_plain_or_async():
    async def source():
        for n in range(6):
            yield n

    async def odd(n):
        return n % 2

    async def main(clock):
        pipeline = Pipeline().map(lambda n: n + 1).filter(odd).map(str)
        return await pipeline.collect(source()), await pipeline.collect(range(6)), await pipeline.collect([])

    assert virtual(main) == (["1", "3", "5"], ["1", "3", "5"], [])


def test_no_more_calls_than_workers():
    async def main(clock):
        running, most = set(), []

        async def work(n):
            running.add(n)
            most.append(len(running))
            await clock.sleep(1)
            running.discard(n)

        await Pipeline(limit=50).map(work, workers=3).collect(range(12))
        return max(most), clock.now()

    assert virtual(main) == (3, 4)


@pytest.mark.parametrize("limit", [1, 3])
def test_source_is_read_no_further_than_the_limit(limit):
    async def main(clock):
        read, ahead = [], []

        def source():
            for n in range(8):
                read.append(n)
                yield n

        async with Pipeline(limit=limit).map(str, workers=2).open(source()) as results:
            handed_out = 0
            async for _ in results:
                handed_out += 1
                await clock.sleep(1)
                ahead.append(len(read) - handed_out)
        return max(ahead)

    assert virtual(main) == limit


def test_filtered_items_free_their_place():
    async def main(clock):
        return await Pipeline(limit=2).filter(lambda n: n % 10 == 9).map(lambda n: -n).collect(range(30))

    assert virtual(main) == [-9, -19, -29]


def test_pipelines_do_not_change():
    async def main(clock):
        first = Pipeline().map(lambda n: n + 1)
        second = first.map(lambda n: n * 10)
        return await first.collect([1]), await second.collect([1]), await Pipeline().collect([1])

    assert virtual(main) == ([2], [20], [1])


def test_refused_arguments():
    for wrong in (lambda: Pipeline(limit=0), lambda: Pipeline().map(str, workers=0)):
        with pytest.raises(ValueError):
            wrong()


def test_error_of_a_stage_ends_the_run():
    async def main(clock):
        before, got = asyncio.all_tasks(), []

        async def work(n):
            await clock.sleep(n)
            return 1 // (3 - n)

        with pytest.raises(ZeroDivisionError):
            async with Pipeline().map(work, workers=5).open([1, 2, 3, 9]) as results:
                async for result in results:
                    got.append(result)
        return got, clock.now(), asyncio.all_tasks() - before

    assert virtual(main) == ([0, 1], 3, set())


def test_error_of_the_source_ends_the_run():
    def source():
        yield 1
        raise KeyError("x")

    async def main(clock):
        before = asyncio.all_tasks()
        with pytest.raises(KeyError):
            await Pipeline().map(sleeping(clock)).collect(source())
        return asyncio.all_tasks() - before

    assert virtual(main) == set()


def test_stage_that_is_cancelled_from_within_does_not_stall():
    async def main(clock):
        async def work(n):
            raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await Pipeline().map(work).collect([1])

    virtual(main)


def test_leaving_early_leaves_no_task():
    async def main(clock):
        before = asyncio.all_tasks()
        async with Pipeline().map(sleeping(clock), workers=2).open([1, 50, 60, 70]) as results:
            async for result in results:
                break
        return result, clock.now(), asyncio.all_tasks() - before

    assert virtual(main) == (1, 1, set())


def test_cancelled_run_leaves_no_task():
    async def main(clock):
        before, ended = asyncio.all_tasks(), []
        task = asyncio.ensure_future(Pipeline().map(sleeping(clock, ended, 2), workers=2).collect([50, 60, 70]))
        await clock.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return ended, asyncio.all_tasks() - before

    assert virtual(main) == ([3, 3], set())


def test_workers_clean_up_when_the_run_is_cancelled_again():
    async def main(clock):
        before, ended = asyncio.all_tasks(), []
        task = asyncio.ensure_future(Pipeline().map(sleeping(clock, ended, 5), workers=2).collect([50, 60, 70]))
        for _ in range(3):
            await clock.sleep(1)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return ended, clock.now(), asyncio.all_tasks() - before

    assert virtual(main) == ([6, 6], 6, set())


def test_source_is_closed_when_the_block_is_left():
    async def main(clock):
        closed = []
        source = numbers(closed)
        async with Pipeline(limit=4).map(str).open(source) as results:
            async for result in results:
                if result == "5":
                    break
        return len(closed), [n async for n in source]

    assert virtual(main) == (1, [])


def test_source_is_closed_after_an_error():
    async def main(clock):
        closed = []
        source = numbers(closed)
        with pytest.raises(ZeroDivisionError):
            await Pipeline().map(lambda n: 1 // (n - 3)).collect(source)
        return len(closed), [n async for n in source]

    assert virtual(main) == (1, [])
