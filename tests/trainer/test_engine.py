"""The embedded engine: what it samples, what it remembers between turns, and how it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest
import torch
from engine_cases import VOCABULARY, ask, engine_of, fresh_logprobs, play, small_model

from rocknroll.trainer.engines.base import EngineError, Generation
from rocknroll.trainer.engines.local import LocalEngine

TURNS = ([1, 5, 9, 3, 8, 2, 7], [11, 4, 6], [12, 13, 2, 2, 9], [30])


def turns_of(number: int) -> list[list[int]]:
    """Episodes that differ from their first token on."""
    return [[number + 5, *turn] for turn in TURNS]


@pytest.mark.asyncio
@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("tied", [True, False])
async def test_logprobs_equal_a_fresh_forward_through_several_turns(family: str, tied: bool) -> None:
    model = small_model(family, tied=tied)
    async with engine_of(model) as engine:
        episodes = await asyncio.gather(*(play(engine, str(n), turns_of(n), temperature=0.7) for n in range(4)))
        assert engine.metrics()["tokens_reused"] > 0
    for prompt, generation in (turn for episode in episodes for turn in episode):
        expected = fresh_logprobs(model, prompt, generation.token_ids, temperature=0.7)
        assert generation.logprobs == pytest.approx(expected, abs=1e-5)


@pytest.mark.asyncio
async def test_a_turn_computes_only_its_new_tokens() -> None:
    async with engine_of(small_model()) as engine:
        (first, answer), _ = await play(engine, "t", [TURNS[0], TURNS[1]])
        # The last token of an answer was sampled but never seen by the model.
        assert engine.metrics()["tokens_prefilled"] == len(first) + 1 + len(TURNS[1])
        assert engine.metrics()["tokens_reused"] == len(first) + len(answer.token_ids) - 1


@pytest.mark.asyncio
async def test_evicted_context_is_computed_again() -> None:
    model = small_model()
    async with engine_of(model, slots=1) as engine:
        prompt = [1, 2, 3, 4]
        first = await engine.generate(ask(prompt, trajectory="a"))
        await engine.generate(ask([9, 8, 7], trajectory="b"))
        longer = [*prompt, *first.token_ids, 5, 6]
        before = engine.metrics()["tokens_prefilled"]
        again = await engine.generate(ask(longer, trajectory="a"))
        assert engine.metrics()["tokens_prefilled"] - before == len(longer)
    assert again.logprobs == pytest.approx(fresh_logprobs(model, longer, again.token_ids), abs=1e-5)


@pytest.mark.asyncio
async def test_prompt_that_departs_from_the_last_one_keeps_the_common_part() -> None:
    model = small_model()
    async with engine_of(model) as engine:
        await engine.generate(ask([1, 2, 3, 4, 5, 6]))
        other = [1, 2, 3, 9, 9]
        generation = await engine.generate(ask(other))
        assert engine.metrics()["tokens_reused"] == 3
    assert generation.logprobs == pytest.approx(fresh_logprobs(model, other, generation.token_ids), abs=1e-5)


@pytest.mark.asyncio
async def test_members_of_a_group_compute_their_prompt_once() -> None:
    model = small_model()
    prompt = [i % VOCABULARY for i in range(50)]
    async with engine_of(model, slots=8) as engine:
        members = await asyncio.gather(*(engine.generate(ask(prompt, trajectory=str(n), seed=n)) for n in range(8)))
        # Everyone computes the last token itself: its logits are wanted.
        assert engine.metrics()["tokens_prefilled"] == 50 + 7
        assert engine.metrics()["tokens_reused"] == 7 * 49
    assert len({member.token_ids for member in members}) > 1
    for member in members:
        assert member.logprobs == pytest.approx(fresh_logprobs(model, prompt, member.token_ids), abs=1e-5)


@pytest.mark.asyncio
async def test_tokens_do_not_depend_on_what_else_is_in_the_batch() -> None:
    model = small_model()
    async with engine_of(model, slots=1) as engine:
        alone = [await play(engine, str(n), turns_of(n), seed=n) for n in range(8)]
    async with engine_of(model, slots=5) as engine:
        together = await asyncio.gather(*(play(engine, str(n), turns_of(n), seed=n) for n in range(8)))
    assert [[g.token_ids for _, g in episode] for episode in alone] == [
        [g.token_ids for _, g in episode] for episode in together
    ]


@pytest.mark.asyncio
async def test_requests_without_a_seed_differ() -> None:
    async with engine_of(small_model()) as engine:
        requests = [ask([1, 2, 3], trajectory=str(n), seed=None, max_tokens=12) for n in range(4)]
        answers = await asyncio.gather(*map(engine.generate, requests))
    assert len({answer.token_ids for answer in answers}) == 4


@pytest.mark.asyncio
async def test_greedy_equals_greedy_of_transformers() -> None:
    model = small_model()
    prompts = [[1, 2, 3], [9, 8, 7, 6, 5], [30]]
    async with engine_of(model) as engine:
        requests = [ask(p, trajectory=str(n), temperature=0.0, max_tokens=20) for n, p in enumerate(prompts)]
        answers = await asyncio.gather(*map(engine.generate, requests))
    for prompt, answer in zip(prompts, answers, strict=True):
        reference = model.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=20, min_new_tokens=20, pad_token_id=0
        )
        assert list(answer.token_ids) == reference[0, len(prompt) :].tolist()
        assert answer.logprobs == pytest.approx(fresh_logprobs(model, prompt, answer.token_ids), abs=1e-5)


@pytest.mark.asyncio
async def test_generation_ends_with_the_stop_token() -> None:
    async with engine_of(small_model()) as engine:
        free = await engine.generate(ask([1, 2, 3], max_tokens=12))
        stop = free.token_ids[4]
        stopped = await engine.generate(ask([1, 2, 3], max_tokens=12, stop_ids=(stop,)))
    assert (free.finish_reason, len(free.token_ids)) == ("length", 12)
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]


@pytest.mark.asyncio
async def test_generation_ends_where_the_context_is_full() -> None:
    async with engine_of(small_model(), max_length=16) as engine:
        answer = await engine.generate(ask([1] * 13, max_tokens=50))
    assert (answer.finish_reason, len(answer.token_ids)) == ("length", 3)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("prompt", "choices", "complaint"),
    [
        ([1] * 16, None, "do not fit into 16"),
        ([1] * 14, [[1, 2, 3]], "do not fit into 16"),
        ([], None, "the prompt is empty"),
        ([1, VOCABULARY], None, "outside the vocabulary"),
        ([-1], None, "outside the vocabulary"),
        ([1], [], "at least one choice"),
    ],
)
async def test_impossible_requests_are_refused(
    prompt: Sequence[int], choices: Sequence[Sequence[int]] | None, complaint: str
) -> None:
    async with engine_of(small_model(), max_length=16) as engine:
        with pytest.raises(ValueError, match=complaint):
            await engine.generate(ask(prompt, choices=choices))


@pytest.mark.asyncio
async def test_long_prompts_do_not_hold_up_a_request_that_decodes() -> None:
    async with engine_of(small_model(max_position_embeddings=2048), max_length=2048) as engine:
        await engine.suspend()
        long = asyncio.create_task(engine.generate(ask([3] * 2000, name="long", trajectory="long", max_tokens=1)))
        await asyncio.sleep(0)
        short = asyncio.create_task(engine.generate(ask([1, 2], trajectory="short", max_tokens=4)))
        await asyncio.sleep(0)
        await engine.resume()
        done, _ = await asyncio.wait({long, short}, return_when=asyncio.FIRST_COMPLETED)
        assert done == {short}
        await long


@pytest.mark.asyncio
async def test_more_requests_than_slots_all_finish() -> None:
    async with engine_of(small_model(), slots=3) as engine:
        answers = await asyncio.gather(*(engine.generate(ask([n], trajectory=str(n))) for n in range(20)))
    assert all(len(answer.token_ids) == 6 for answer in answers)


@pytest.mark.asyncio
async def test_requests_of_one_trajectory_run_one_after_the_other() -> None:
    model = small_model()
    async with engine_of(model) as engine:
        answers = await asyncio.gather(*(engine.generate(ask([n, 1], name=str(n))) for n in range(3)))
    for n, answer in enumerate(answers):
        assert answer.logprobs == pytest.approx(fresh_logprobs(model, [n, 1], answer.token_ids), abs=1e-5)


async def endless(engine: LocalEngine, name: str = "r") -> tuple[asyncio.Task[Generation], asyncio.Task[Generation]]:
    """A request that would run for long, and one beside it; returns once both generate."""
    tasks = [
        asyncio.create_task(engine.generate(ask([n + 1], name=f"{name}{n}", trajectory=str(n), max_tokens=10_000)))
        for n in range(2)
    ]
    while engine.metrics()["tokens_generated"] < 10:
        await asyncio.sleep(0)
    return tasks[0], tasks[1]


@pytest.mark.asyncio
async def test_aborted_request_returns_what_it_has() -> None:
    model = small_model(max_position_embeddings=20_000)
    async with engine_of(model, max_length=20_000) as engine:
        first, second = await endless(engine)
        await engine.abort("r0")
        answer = await first
        assert answer.finish_reason == "abort"
        assert not second.done()
        await engine.abort("r1")
    assert answer.logprobs == pytest.approx(fresh_logprobs(model, [1], answer.token_ids), abs=1e-4)


@pytest.mark.asyncio
async def test_waiting_request_can_be_aborted_and_unknown_ones_are_ignored() -> None:
    async with engine_of(small_model()) as engine:
        await engine.suspend()
        task = asyncio.create_task(engine.generate(ask([1])))
        await asyncio.sleep(0)
        await engine.abort("nobody")
        await engine.abort("r")
        assert (await task).token_ids == ()


@pytest.mark.asyncio
async def test_cancelled_caller_frees_the_slot() -> None:
    async with engine_of(small_model(max_position_embeddings=20_000), slots=2, max_length=20_000) as engine:
        first, second = await endless(engine)
        first.cancel()
        second.cancel()
        answer = await engine.generate(ask([5], trajectory="new"))
    assert len(answer.token_ids) == 6


@pytest.mark.asyncio
async def test_nothing_is_generated_while_suspended() -> None:
    async with engine_of(small_model(max_position_embeddings=20_000), max_length=20_000) as engine:
        first, second = await endless(engine)
        await engine.suspend()
        steps = engine.metrics()["steps"]
        late = asyncio.create_task(engine.generate(ask([4], trajectory="late")))
        # A round through the worker's inbox: it had every chance to step.
        await engine.suspend()
        assert engine.metrics()["steps"] == steps
        await engine.resume()
        await late
        for task in (first, second):
            task.cancel()


@pytest.mark.asyncio
async def test_released_slots_are_used_again_without_eviction() -> None:
    async with engine_of(small_model(), slots=2) as engine:
        kept = await engine.generate(ask([1, 2, 3], trajectory="kept"))
        for n in range(5):
            await engine.generate(ask([n + 10, 3], trajectory=str(n)))
            await engine.release(str(n))
        before = engine.metrics()["tokens_reused"]
        await engine.generate(ask([1, 2, 3, *kept.token_ids, 4], trajectory="kept"))
        assert engine.metrics()["tokens_reused"] - before == 3 + len(kept.token_ids) - 1


@pytest.mark.asyncio
async def test_pending_and_later_requests_of_a_closed_engine_fail() -> None:
    engine = LocalEngine(small_model(max_position_embeddings=20_000), slots=2, max_length=20_000)
    first, second = await endless(engine)
    await engine.close()
    for task in (first, second):
        with pytest.raises(EngineError, match="closed"):
            await task
    with pytest.raises(EngineError, match="closed"):
        await engine.generate(ask([1]))
    await engine.abort("r0")
    await engine.release("0")
    await engine.close()


@pytest.mark.asyncio
async def test_failed_step_costs_its_requests_and_not_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()
    async with engine_of(model) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(
                engine._batcher._newest.forward,
                "logits",
                lambda *_: (_ for _ in ()).throw(RuntimeError("out of memory")),
            )
            with pytest.raises(EngineError, match="out of memory"):
                await engine.generate(ask([1, 2]))
        answer = await engine.generate(ask([1, 2, 3]))
    assert answer.logprobs == pytest.approx(fresh_logprobs(model, [1, 2, 3], answer.token_ids), abs=1e-5)


@pytest.mark.asyncio
async def test_idle_engine_waits_and_counts_it() -> None:
    async with engine_of(small_model()) as engine:
        await engine.generate(ask([1]))
        cpu, idle = _thread_cpu_s(engine), engine.metrics()["idle_s"]
        while engine.metrics()["idle_s"] < idle + 0.2:
            await asyncio.sleep(0.01)
        assert _thread_cpu_s(engine) - cpu < 0.1


def _thread_cpu_s(engine: LocalEngine) -> float:
    return time.clock_gettime(time.pthread_getcpuclockid(engine._thread.ident or 0))
