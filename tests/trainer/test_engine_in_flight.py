"""New weights while requests are under way: `abort`, `keep`, `recompute`; each token has the version that made it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
from engine_cases import VOCABULARY, ask, engine_of, fresh_logprobs, small_model

from rocknroll.trainer.engines.base import Generation, InFlight, Request
from rocknroll.trainer.engines.local import LocalEngine

MODES: tuple[InFlight, ...] = ("abort", "keep", "recompute")
MODELS = [small_model(seed=seed, max_position_embeddings=4096) for seed in range(4)]
"""The policy of each version."""


def assert_true_to_versions(request: Request, answer: Generation) -> None:
    """Every token has the log-probability that the weights of its version give it in a fresh forward pass."""
    allowed = answer.allowed if request.choices is not None else None
    for version in set(answer.versions):
        expected = fresh_logprobs(MODELS[version], request.prompt_ids, answer.token_ids, allowed=allowed)
        for got, wanted, made_by in zip(answer.logprobs, expected, answer.versions, strict=True):
            if made_by == version:
                assert got == pytest.approx(wanted, abs=1e-4)


async def publish(engine: LocalEngine, version: int, mode: InFlight, *, suspended: bool = True) -> None:
    if suspended:
        await engine.suspend()
    await engine.update_weights(MODELS[version].state_dict(), version, mode)
    if suspended:
        await engine.resume()


async def generated(engine: LocalEngine, tokens: int) -> None:
    """Wait until the engine has generated that many tokens since it was made."""
    while engine.metrics()["tokens_generated"] < tokens:
        await asyncio.sleep(0)


def long_requests(count: int, tokens: int = 200) -> list[Request]:
    return [ask([n + 1, 2, 3], name=f"r{n}", trajectory=str(n), seed=n, max_tokens=tokens) for n in range(count)]


@pytest.mark.asyncio
@pytest.mark.parametrize("suspended", [True, False])
async def test_aborted_requests_end_with_what_they_have(suspended: bool) -> None:
    requests = long_requests(3, tokens=2000)
    async with engine_of(MODELS[0], max_length=2048) as engine:
        tasks = [asyncio.create_task(engine.generate(request)) for request in requests]
        await generated(engine, 20)
        await publish(engine, 1, "abort", suspended=suspended)
        answers = await asyncio.gather(*tasks)
    for request, answer in zip(requests, answers, strict=True):
        assert answer.finish_reason == "abort"
        assert 0 < len(answer.token_ids) < 2000 and set(answer.versions) == {0}
        assert_true_to_versions(request, answer)


@pytest.mark.asyncio
@pytest.mark.parametrize("suspended", [True, False])
async def test_kept_requests_finish_on_the_weights_they_began_with(suspended: bool) -> None:
    requests = long_requests(3)
    async with engine_of(MODELS[0], max_length=2048) as engine:
        tasks = [asyncio.create_task(engine.generate(request)) for request in requests]
        await generated(engine, 20)
        await publish(engine, 1, "keep", suspended=suspended)
        beside = ask([9, 8, 7], name="new", trajectory="new", max_tokens=50)
        new = await engine.generate(beside)
        answers = await asyncio.gather(*tasks)
    for request, answer in zip(requests, answers, strict=True):
        assert (answer.finish_reason, len(answer.token_ids), set(answer.versions)) == ("length", 200, {0})
        assert_true_to_versions(request, answer)
    assert set(new.versions) == {1}
    assert_true_to_versions(beside, new)


@pytest.mark.asyncio
async def test_next_turn_of_a_kept_trajectory_uses_the_new_weights() -> None:
    (request,) = long_requests(1)
    async with engine_of(MODELS[0], max_length=2048) as engine:
        task = asyncio.create_task(engine.generate(request))
        await generated(engine, 5)
        await publish(engine, 1, "keep")
        first = await task
        before = engine.metrics()["tokens_reused"]
        again = ask([*request.prompt_ids, *first.token_ids, 5], name="next", trajectory=request.trajectory_id)
        second = await engine.generate(again)
        assert engine.metrics()["tokens_reused"] == before
    assert set(second.versions) == {1}
    assert_true_to_versions(again, second)


@pytest.mark.asyncio
async def test_old_weights_are_let_go_when_their_last_request_is_done() -> None:
    async with engine_of(MODELS[0], max_length=2048) as engine:
        for version in (1, 2, 3):
            request = ask([version], name=str(version), trajectory=str(version), max_tokens=150)
            task = asyncio.create_task(engine.generate(request))
            tokens = engine.metrics()["tokens_generated"]
            await generated(engine, int(tokens) + 5)
            await publish(engine, version, "keep")
            assert {run.weights.version for run in engine._batcher._running} == {version - 1}
            assert set((await task).versions) == {version - 1}
        assert not engine._batcher._running


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", MODES)
async def test_waiting_requests_start_on_the_newest_weights(mode: InFlight) -> None:
    async with engine_of(MODELS[0], slots=1, max_length=2048) as engine:
        runs, waits = long_requests(2)
        running = asyncio.create_task(engine.generate(runs))
        await generated(engine, 10)
        waiting = asyncio.create_task(engine.generate(waits))
        await asyncio.sleep(0)
        await publish(engine, 1, mode)
        await running
        answer = await waiting
    assert (set(answer.versions), answer.finish_reason) == ({1}, "length")
    assert_true_to_versions(waits, answer)


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", MODES)
async def test_request_that_came_while_suspended_starts_on_the_newest_weights(mode: InFlight) -> None:
    async with engine_of(MODELS[0]) as engine:
        await engine.suspend()
        request = ask([1, 2, 3])
        task = asyncio.create_task(engine.generate(request))
        await asyncio.sleep(0)
        await engine.suspend()  # a round through the inbox: the request has its slot now
        await publish(engine, 1, mode)
        answer = await task
    assert (set(answer.versions), answer.finish_reason) == ({1}, "length")
    assert_true_to_versions(request, answer)


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", MODES)
async def test_request_whose_prompt_is_half_computed_is_under_way(mode: InFlight) -> None:
    pick = random.Random(0)
    request = ask([pick.randrange(VOCABULARY) for _ in range(3900)], name="long", trajectory="long")
    async with engine_of(MODELS[0], max_length=4096) as engine:
        task = asyncio.create_task(engine.generate(request))
        while engine.metrics()["tokens_prefilled"] == 0:
            await asyncio.sleep(0)
        await engine.suspend()
        assert engine.metrics()["tokens_prefilled"] < 3900
        await publish(engine, 1, mode)
        answer = await task
    expected = {"abort": set(), "keep": {0}, "recompute": {1}}
    assert set(answer.versions) == expected[mode]
    assert_true_to_versions(request, answer)


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", MODES)
async def test_members_of_a_group_never_copy_context_across_weights(mode: InFlight) -> None:
    pick = random.Random(1)
    prompt = [pick.randrange(VOCABULARY) for _ in range(60)]
    requests = [ask(prompt, name=f"r{n}", trajectory=str(n), seed=n, max_tokens=40) for n in range(6)]
    async with engine_of(MODELS[0], slots=6) as engine:
        first = [asyncio.create_task(engine.generate(request)) for request in requests[:3]]
        await generated(engine, 12)
        await publish(engine, 1, mode)
        answers = [*await asyncio.gather(*map(engine.generate, requests[3:])), *await asyncio.gather(*first)]
    for request, answer in zip((*requests[3:], *requests[:3]), answers, strict=True):
        assert_true_to_versions(request, answer)


@pytest.mark.asyncio
async def test_recompute_takes_back_requests_that_an_earlier_update_kept() -> None:
    (request,) = long_requests(1)
    async with engine_of(MODELS[0], max_length=2048) as engine:
        task = asyncio.create_task(engine.generate(request))
        await generated(engine, 10)
        await publish(engine, 1, "keep")
        await generated(engine, 30)
        await publish(engine, 2, "recompute")
        answer = await task
    assert set(answer.versions) == {0, 2}
    assert_true_to_versions(request, answer)


@pytest.mark.asyncio
async def test_refused_weights_disturb_nobody() -> None:
    (request,) = long_requests(1)
    for mode in MODES:
        async with engine_of(MODELS[0], max_length=2048) as engine:
            task = asyncio.create_task(engine.generate(request))
            await generated(engine, 10)
            with pytest.raises(ValueError, match="new weights do not fit"):
                await engine.update_weights({"strange": MODELS[1].state_dict()["lm_head.weight"]}, 1, mode)
            answer = await task
        assert (answer.finish_reason, set(answer.versions)) == ("length", {0})
        assert_true_to_versions(request, answer)


def choices_of(pick: random.Random) -> list[list[int]]:
    """Sequences of up to 30 tokens that share beginnings, with a stop token behind each."""
    stem = [pick.randrange(3, VOCABULARY) for _ in range(30)]
    return [[*stem[:length], pick.randrange(3, VOCABULARY), 2] for length in range(2, 28)]


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("constrained", [True, False])
@pytest.mark.parametrize("seed", range(3))
async def test_any_mix_of_requests_and_updates_is_true_to_its_versions(
    mode: InFlight, constrained: bool, seed: int
) -> None:
    pick = random.Random(seed)

    async def episode(engine: LocalEngine, name: str) -> list[tuple[Request, Generation]]:
        context = [pick.randrange(VOCABULARY) for _ in range(pick.choice((3, 40, 300)))]
        played = []
        for turn in range(4):
            choices: Sequence[Sequence[int]] | None = choices_of(pick) if constrained else None
            request = ask(
                list(context), name=f"{name}.{turn}", trajectory=name, seed=turn, max_tokens=25, choices=choices
            )
            answer = await engine.generate(request)
            played.append((request, answer))
            context += [*answer.token_ids, *(pick.randrange(VOCABULARY) for _ in range(5))]
        await engine.release(name)
        return played

    async def updates(engine: LocalEngine, tasks: Sequence[asyncio.Task[Any]]) -> None:
        for version in (1, 2, 3):
            tokens = engine.metrics()["tokens_generated"] + pick.randint(5, 25)
            while engine.metrics()["tokens_generated"] < tokens and not all(task.done() for task in tasks):
                await asyncio.sleep(0)
            await publish(engine, version, mode, suspended=pick.random() < 0.5)

    async with engine_of(MODELS[0], slots=4, max_length=1024) as engine:
        tasks = [asyncio.create_task(episode(engine, str(n))) for n in range(7)]
        await updates(engine, tasks)
        played = [turn for episode in await asyncio.gather(*tasks) for turn in episode]
    assert len({version for _, answer in played for version in answer.versions}) > 1
    for request, answer in played:
        assert_true_to_versions(request, answer)
        if mode != "recompute":
            assert len(set(answer.versions)) <= 1
