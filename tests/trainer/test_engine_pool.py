"""Several engines as one: who serves whom, new weights for all, and what becomes of an engine that breaks down."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_cases import ask, fresh_logprobs, small_model

from rocknroll.trainer.controller import write_weights
from rocknroll.trainer.engines.base import EngineError, InFlight, Request
from rocknroll.trainer.engines.cores import available_cores, share_of
from rocknroll.trainer.engines.local import LocalEngine
from rocknroll.trainer.engines.pool import EnginePool
from rocknroll.trainer.engines.weights_file import WeightsFile
from rocknroll.trainer.errors import RecipeError

# A worker thread that dies says so on standard error; here it is meant to die.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

MODELS = [small_model(seed=seed, max_position_embeddings=4096) for seed in range(3)]


class Engines:
    """A factory that remembers what it made."""

    def __init__(self) -> None:
        self.made: list[LocalEngine] = []

    def __call__(self, seat: int) -> LocalEngine:
        self.made.append(LocalEngine(MODELS[0], slots=4, max_length=2048))
        return self.made[-1]


@asynccontextmanager
async def pool_of(replicas: int, **settings: Any) -> AsyncIterator[tuple[EnginePool, list[LocalEngine]]]:
    engines = Engines()
    pool = EnginePool(engines, replicas=replicas, **settings)
    try:
        yield pool, engines.made
    finally:
        await pool.close()
        assert not any(engine._thread.is_alive() for engine in engines.made)


def for_engine(engine: int, trajectory: str, **settings: Any) -> Request:
    return replace(ask([engine + 1, 2, 3], name=f"{trajectory}/0", trajectory=trajectory, **settings), engine=engine)


async def crash(engine: LocalEngine) -> None:
    """Kill the engine's worker as a fault in its own code would, and wait until it is dead."""

    def fail() -> None:
        raise MemoryError("poisoned")

    engine._post(fail)
    await asyncio.to_thread(engine._thread.join)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


async def wait_for_tokens(engine: LocalEngine, count: int) -> None:
    await until(lambda: engine.metrics()["tokens_generated"] >= count)


def generated(engine: LocalEngine) -> float:
    return engine.metrics()["tokens_generated"]


@pytest.mark.asyncio
async def test_requests_go_to_the_engine_that_they_name() -> None:
    async with pool_of(3) as (pool, engines):
        await asyncio.gather(*(pool.generate(for_engine(n % 2, str(n))) for n in range(6)))
        assert [generated(engine) for engine in engines] == [18, 18, 0]


@pytest.mark.asyncio
async def test_trajectory_stays_with_its_engine_until_it_is_released() -> None:
    async with pool_of(2) as (pool, engines):
        await pool.generate(for_engine(1, "t"))
        await pool.generate(for_engine(0, "t"))
        assert [generated(engine) for engine in engines] == [0, 12]
        await pool.release("t")
        await pool.generate(for_engine(0, "t"))
        assert [generated(engine) for engine in engines] == [6, 12]


@pytest.mark.asyncio
async def test_request_for_an_engine_that_is_not_there_is_refused() -> None:
    async with pool_of(2) as (pool, _):
        with pytest.raises(ValueError, match="is for engine 2, but there are 2"):
            await pool.generate(for_engine(2, "t"))


@pytest.mark.asyncio
async def test_answers_do_not_depend_on_the_engine() -> None:
    async with pool_of(2) as (pool, _):
        request = ask([1, 2, 3], trajectory="a")
        first = await pool.generate(request)
        second = await pool.generate(replace(request, trajectory_id="b", engine=1))
    assert first.token_ids == second.token_ids


@pytest.mark.asyncio
async def test_aborts_reach_the_engine_of_their_request() -> None:
    async with pool_of(2) as (pool, engines):
        task = asyncio.create_task(pool.generate(for_engine(1, "t", max_tokens=2000)))
        await wait_for_tokens(engines[1], 5)
        await pool.abort("t/0")
        assert (await task).finish_reason == "abort"


@pytest.mark.asyncio
@pytest.mark.parametrize("suspended", [True, False])
@pytest.mark.parametrize("mode", ["abort", "keep", "recompute"])
async def test_new_weights_reach_every_engine(mode: InFlight, suspended: bool) -> None:
    async with pool_of(2) as (pool, engines):
        tasks = [asyncio.create_task(pool.generate(for_engine(n, f"old{n}", max_tokens=300))) for n in range(2)]
        for engine in engines:
            await wait_for_tokens(engine, 5)
        if suspended:
            await pool.suspend()
        await pool.update_weights(MODELS[1].state_dict(), 1, mode)
        if suspended:
            steps = pool.metrics()["steps"]
            await pool.suspend()  # a round through every inbox
            assert pool.metrics()["steps"] == steps
            await pool.resume()
        old = await asyncio.gather(*tasks)
        new = await asyncio.gather(*(pool.generate(for_engine(n, f"new{n}")) for n in range(2)))
    expected = {"abort": {0}, "keep": {0}, "recompute": {0, 1}}
    assert [set(answer.versions) for answer in old] == [expected[mode]] * 2
    for n, answer in enumerate(new):
        assert set(answer.versions) == {1}
        assert answer.logprobs == pytest.approx(fresh_logprobs(MODELS[1], [n + 1, 2, 3], answer.token_ids), abs=1e-5)


@pytest.mark.asyncio
async def test_weights_that_do_not_fit_are_refused_by_all() -> None:
    async with pool_of(2) as (pool, _):
        with pytest.raises(ValueError, match="new weights do not fit"):
            await pool.update_weights({}, 1)
        answers = await asyncio.gather(*(pool.generate(for_engine(n, str(n))) for n in range(2)))
    assert {version for answer in answers for version in answer.versions} == {0}


@pytest.mark.asyncio
async def test_broken_engine_costs_what_was_under_way_in_it_and_nothing_else() -> None:
    async with pool_of(2) as (pool, engines):
        doomed, spared = (asyncio.create_task(pool.generate(for_engine(n, str(n), max_tokens=400))) for n in range(2))
        await wait_for_tokens(engines[0], 5)
        await crash(engines[0])
        with pytest.raises(EngineError, match="broke down: MemoryError: poisoned"):
            await doomed
        answer = await pool.generate(for_engine(0, "0"))
        assert (len((await spared).token_ids), len(answer.token_ids)) == (400, 6)
        assert pool.metrics()["engine_restarts"] == 1


@pytest.mark.asyncio
async def test_request_that_arrives_while_the_engine_dies_fails_too() -> None:
    async with pool_of(1) as (pool, engines):
        busy, arrived = threading.Event(), threading.Event()

        def block() -> None:
            busy.set()
            arrived.wait()

        def fail() -> None:
            raise MemoryError("poisoned")

        engines[0]._post(block)
        await until(busy.is_set)
        engines[0]._post(fail)
        request = asyncio.create_task(pool.generate(for_engine(0, "t")))
        await until(lambda: len(engines[0]._inbox) == 2)
        arrived.set()
        with pytest.raises(EngineError, match="poisoned"):
            await request


@pytest.mark.asyncio
async def test_replaced_engine_has_the_newest_published_weights() -> None:
    state = {name: value.clone() for name, value in MODELS[2].state_dict().items()}
    async with pool_of(1) as (pool, engines):
        await pool.update_weights(MODELS[1].state_dict(), 1)
        await pool.update_weights(state, 2)
        for value in state.values():
            value.zero_()  # what was published is the pool's own
        await crash(engines[0])
        answer = await pool.generate(for_engine(0, "t"))
    assert set(answer.versions) == {2}
    assert answer.logprobs == pytest.approx(fresh_logprobs(MODELS[2], [1, 2, 3], answer.token_ids), abs=1e-5)


@pytest.mark.asyncio
async def test_replaced_engine_has_the_file_that_was_published_and_not_the_next_one(tmp_path: Path) -> None:
    path = write_weights(MODELS[1].state_dict(), tmp_path / "weights.safetensors")
    async with pool_of(2) as (pool, engines):
        await pool.update_weights(WeightsFile(path), 1)
        write_weights(MODELS[2].state_dict(), path)  # the learner is ahead
        await crash(engines[0])
        answers = await asyncio.gather(*(pool.generate(for_engine(n, str(n))) for n in range(2)))
    for n, answer in enumerate(answers):
        assert set(answer.versions) == {1}
        fresh = fresh_logprobs(MODELS[1], [n + 1, 2, 3], answer.token_ids)
        assert answer.logprobs == pytest.approx(fresh, abs=1e-5)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.asyncio
async def test_weights_are_published_although_an_engine_is_broken() -> None:
    async with pool_of(2) as (pool, engines):
        await crash(engines[1])
        await pool.suspend()
        await pool.update_weights(MODELS[1].state_dict(), 1)
        await pool.resume()
        answers = await asyncio.gather(*(pool.generate(for_engine(n, str(n))) for n in range(2)))
    assert [set(answer.versions) for answer in answers] == [{1}, {1}]


@pytest.mark.asyncio
async def test_engine_that_is_replaced_while_the_pool_is_suspended_waits_like_the_others() -> None:
    async with pool_of(2) as (pool, engines):
        await pool.suspend()
        await crash(engines[0])
        task = asyncio.create_task(pool.generate(for_engine(0, "t")))
        await until(lambda: pool.metrics()["engine_restarts"] == 1 and pool._seats[0].replacement is None)
        await pool.suspend()  # a round through every inbox
        assert engines[-1] is pool._seats[0].engine
        assert generated(engines[-1]) == 0
        await pool.resume()
        assert len((await task).token_ids) == 6


@pytest.mark.asyncio
async def test_requests_that_find_the_same_broken_engine_replace_it_once() -> None:
    async with pool_of(1) as (pool, engines):
        await crash(engines[0])
        await asyncio.gather(*(pool.generate(for_engine(0, str(n))) for n in range(8)))
        assert (len(engines), pool.metrics()["engine_restarts"]) == (2, 1)


@pytest.mark.asyncio
async def test_cancelled_request_does_not_stop_the_replacement() -> None:
    async with pool_of(1) as (pool, engines):
        await crash(engines[0])
        tasks = [asyncio.create_task(pool.generate(for_engine(0, str(n)))) for n in range(2)]
        await until(lambda: pool._seats[0].replacement is not None)
        tasks[0].cancel()
        assert len((await tasks[1]).token_ids) == 6
        assert len(engines) == 2


@pytest.mark.asyncio
async def test_pool_gives_up_when_its_restarts_are_used_up() -> None:
    async with pool_of(2, restarts=1) as (pool, engines):
        await crash(engines[0])
        await pool.generate(for_engine(0, "a"))
        await crash(engines[-1])
        for request in (for_engine(0, "b"), for_engine(1, "c")):
            with pytest.raises(EngineError, match=r"poisoned\), and the 1 restarts that `engine.restarts` allows"):
                await pool.generate(request)
        assert pool.metrics()["engine_restarts"] == 1


@pytest.mark.asyncio
async def test_engine_that_cannot_be_made_again_fails_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pool_of(1, restarts=2) as (pool, engines):
        await crash(engines[0])

        def no_memory(seat: int) -> LocalEngine:
            raise MemoryError("no room for another")

        monkeypatch.setattr(pool, "_factory", no_memory)
        for _ in range(2):
            with pytest.raises(EngineError, match="could not be replaced: MemoryError: no room"):
                await pool.generate(for_engine(0, "a"))
        with pytest.raises(EngineError, match="are used up"):
            await pool.generate(for_engine(0, "a"))


@pytest.mark.asyncio
async def test_counters_never_fall_and_seconds_stay_those_of_the_clock() -> None:
    async with pool_of(2) as (pool, engines):
        await asyncio.gather(*(pool.generate(for_engine(n, str(n))) for n in range(2)))
        before = pool.metrics()
        await crash(engines[0])
        await pool.generate(for_engine(0, "new"))
        after = pool.metrics()
    assert after["tokens_generated"] == before["tokens_generated"] + 6 == 18
    assert all(after[name] >= before[name] for name in before)


@pytest.mark.asyncio
async def test_closed_pool_refuses_requests() -> None:
    async with pool_of(2) as (pool, _):
        await pool.close()
        with pytest.raises(EngineError, match="closed"):
            await pool.generate(for_engine(0, "t"))


@pytest.mark.asyncio
async def test_engines_are_held_to_their_cores_also_when_replaced() -> None:
    core = available_cores()[-1]
    async with pool_of(2, cores=(core,)) as (pool, engines):
        await crash(engines[0])
        await pool.generate(for_engine(0, "t"))
        for engine in engines[1:]:
            assert os.sched_getaffinity(engine.thread_id) == {core}
    assert len(os.sched_getaffinity(0)) == len(available_cores())


@pytest.mark.parametrize(
    ("cores", "shares"),
    [((0, 1, 2, 3), [(0, 2), (1, 3)]), ((0, 1, 2), [(0, 2), (1,)]), ((5,), [(5,), (5,)])],
)
def test_engines_share_cores_evenly(cores: tuple[int, ...], shares: list[tuple[int, ...]]) -> None:
    assert [share_of(cores, index, 2) for index in range(2)] == shares


@pytest.mark.parametrize(("cores", "complaint"), [((0, 9999), r"names cores \[9999\]"), ((), "names no cores")])
def test_cores_that_the_machine_lacks_are_refused(cores: tuple[int, ...], complaint: str) -> None:
    engines = Engines()
    with pytest.raises(RecipeError, match=rf"{complaint}.* it has \[0"):
        EnginePool(engines, cores=cores)
    assert not engines.made


@pytest.mark.asyncio
async def test_pool_is_as_exact_as_its_engines() -> None:
    async with pool_of(2) as (pool, engines):
        assert not pool.bit_exact
        for engine in engines:
            engine._exact = True
        assert pool.bit_exact
