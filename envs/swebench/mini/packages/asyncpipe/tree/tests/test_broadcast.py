import asyncio

import pytest

from asyncpipe import Broadcast, Closed, VirtualClock, run_all


def virtual(main):
    clock = VirtualClock()
    return asyncio.run(clock.run(main(clock)))


async def drain(subscription):
    return [item async for item in subscription]


def test_everyone_gets_everything_in_order():
    async def main(clock):
        channel = Broadcast()
        readers = [asyncio.ensure_future(drain(channel.subscribe(buffer=n))) for n in (1, 2, 9)]
        await run_all(*[channel.publish(n) for n in range(5)])
        channel.close()
        return await run_all(*readers)

    assert virtual(main) == [[0, 1, 2, 3, 4]] * 3


def test_subscribers_get_what_comes_after_them():
    async def main(clock):
        channel = Broadcast()
        await channel.publish(1)
        with pytest.raises(ValueError):
            channel.subscribe(buffer=0)
        subscription = channel.subscribe()
        await channel.publish(2)
        channel.close()
        return await drain(subscription)

    assert virtual(main) == [2]


def test_past_items_are_replayed():
    async def main(clock):
        channel = Broadcast(replay=3)
        for n in range(5):
            await channel.publish(n)
        early, short = channel.subscribe(), channel.subscribe(buffer=2)
        first = [await short.get(), await short.get()]
        await channel.publish(5)
        late = channel.subscribe()
        channel.close()
        return first, await drain(early), await drain(short), await drain(late)

    assert virtual(main) == ([3, 4], [2, 3, 4, 5], [5], [3, 4, 5])


def test_publish_waits_for_room():
    async def main(clock):
        channel, times = Broadcast(), []
        subscription = channel.subscribe(buffer=2)

        async def publisher():
            for n in range(4):
                await channel.publish(n)
                times.append(clock.now())

        async def reader():
            for _ in range(4):
                await clock.sleep(1)
                await subscription.get()

        await run_all(publisher(), reader())
        return times

    assert virtual(main) == [0, 0, 1, 2]


def test_publish_does_not_wait_for_those_who_left():
    async def main(clock):
        channel = Broadcast()
        subscription = channel.subscribe(buffer=1)
        await channel.publish(1)
        task = asyncio.ensure_future(channel.publish(2))
        await clock.sleep(3)
        assert not task.done()
        subscription.close()
        await task
        return clock.now()

    assert virtual(main) == 3


def test_buffers_are_read_after_closing():
    async def main(clock):
        channel = Broadcast()
        subscription = channel.subscribe()
        await channel.publish(1)
        channel.close()
        with pytest.raises(Closed):
            await channel.publish(2)
        return await drain(subscription)

    assert virtual(main) == [1]


def test_closing_wakes_readers():
    async def main(clock):
        channel = Broadcast()
        first, second = channel.subscribe(), channel.subscribe()
        tasks = [asyncio.ensure_future(drain(subscription)) for subscription in (first, second)]
        await clock.sleep(1)
        first.close()
        await tasks[0]
        channel.close()
        return await tasks[1]

    assert virtual(main) == []


def test_cancelled_reader_loses_nothing():
    async def main(clock):
        channel = Broadcast()
        subscription = channel.subscribe()
        first, second = asyncio.ensure_future(subscription.get()), asyncio.ensure_future(subscription.get())
        await clock.sleep(1)
        await channel.publish("x")
        first.cancel()
        return await second

    assert virtual(main) == "x"


@pytest.mark.parametrize("buffers", [(9, 1), (1, 9), (9, 1, 9)])
def test_cancelled_publish_reaches_nobody(buffers):
    async def main(clock):
        channel = Broadcast()
        subscriptions = [channel.subscribe(buffer=buffer) for buffer in buffers]
        await channel.publish(1)
        task = asyncio.ensure_future(channel.publish(2))
        await clock.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        channel.close()
        return [await drain(subscription) for subscription in subscriptions]

    assert virtual(main) == [[1]] * len(buffers)


def test_publish_again_after_a_timeout_gives_the_item_once():
    async def main(clock):
        channel = Broadcast(replay=5)
        fast, slow = channel.subscribe(buffer=9), channel.subscribe(buffer=1)
        await channel.publish(1)
        task = asyncio.ensure_future(channel.publish(2))
        await clock.sleep(1)
        task.cancel()
        await clock.sleep(1)
        first = await slow.get()
        await channel.publish(2)
        late = channel.subscribe()
        channel.close()
        return first, await drain(fast), await drain(slow), await drain(late)

    assert virtual(main) == (1, [1, 2], [2], [1, 2])


def test_publish_that_ends_by_closing_reaches_nobody():
    async def main(clock):
        channel = Broadcast()
        fast, slow = channel.subscribe(buffer=9), channel.subscribe(buffer=1)
        await channel.publish(1)
        task = asyncio.ensure_future(channel.publish(2))
        await clock.sleep(1)
        channel.close()
        with pytest.raises(Closed):
            await task
        return await drain(fast), await drain(slow)

    assert virtual(main) == ([1], [1])


def test_nobody_gets_an_item_before_all_have_room():
    async def main(clock):
        channel = Broadcast()
        fast = channel.subscribe(buffer=9)
        slow = [channel.subscribe(buffer=1) for _ in range(2)]
        await channel.publish(1)
        task = asyncio.ensure_future(channel.publish(2))
        arrivals = []

        async def reader():
            async for item in fast:
                arrivals.append((item, clock.now()))

        reading = asyncio.ensure_future(reader())
        for subscription in slow:
            await clock.sleep(1)
            await subscription.get()
        await task
        channel.close()
        await reading
        return arrivals

    assert virtual(main) == [(1, 0), (2, 2)]
