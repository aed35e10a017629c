"""Weights change between two steps: tokens carry the version that sampled them, contexts are recomputed."""

from __future__ import annotations

import asyncio

import pytest
import torch
from engine_cases import ask, engine_of, fresh_logprobs, small_model

from rocknroll.trainer.engines.base import EngineError


@pytest.mark.asyncio
@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize("tied", [True, False])
async def test_swap_during_generation_splits_versions_exactly(family: str, tied: bool) -> None:
    old, new = small_model(family, seed=0, tied=tied), small_model(family, seed=1, tied=tied)
    async with engine_of(old) as engine:
        task = asyncio.create_task(engine.generate(ask([1, 2, 3], max_tokens=100)))
        while engine.metrics()["tokens_generated"] < 10:
            await asyncio.sleep(0)
        await engine.suspend()
        await engine.update_weights(new.state_dict(), 5)
        await engine.resume()
        answer = await task
    assert set(answer.versions) == {0, 5}
    swap = answer.versions.index(5)
    assert answer.versions == (0,) * swap + (5,) * (100 - swap)
    by_old, by_new = (fresh_logprobs(model, [1, 2, 3], answer.token_ids) for model in (old, new))
    assert answer.logprobs[:swap] == pytest.approx(by_old[:swap], abs=1e-4)
    assert answer.logprobs[swap:] == pytest.approx(by_new[swap:], abs=1e-4)
    assert answer.logprobs[swap:] != pytest.approx(by_old[swap:], abs=0.1)


@pytest.mark.asyncio
async def test_context_of_an_earlier_turn_is_recomputed_with_new_weights() -> None:
    new = small_model(seed=1)
    async with engine_of(small_model(seed=0)) as engine:
        first = await engine.generate(ask([1, 2, 3]))
        await engine.update_weights(new.state_dict(), 1)
        prompt = [1, 2, 3, *first.token_ids, 4]
        answer = await engine.generate(ask(prompt))
    assert answer.versions == (1,) * 6
    assert answer.logprobs == pytest.approx(fresh_logprobs(new, prompt, answer.token_ids), abs=1e-5)


@pytest.mark.asyncio
async def test_tied_weights_may_come_without_the_head() -> None:
    new = small_model(seed=1)
    state = {name: value for name, value in new.state_dict().items() if name != "lm_head.weight"}
    async with engine_of(small_model(seed=0)) as engine:
        await engine.update_weights(state, 1)
        answer = await engine.generate(ask([1, 2, 3]))
    assert answer.logprobs == pytest.approx(fresh_logprobs(new, [1, 2, 3], answer.token_ids), abs=1e-5)


@pytest.mark.asyncio
async def test_learner_may_change_its_model_while_the_engine_generates() -> None:
    model, before = small_model(), small_model()
    async with engine_of(model) as engine:
        for parameter in model.parameters():
            parameter.data.zero_()
        answer = await engine.generate(ask([1, 2, 3]))
    assert answer.logprobs == pytest.approx(fresh_logprobs(before, [1, 2, 3], answer.token_ids), abs=1e-5)


@pytest.mark.asyncio
@pytest.mark.parametrize("broken", ["missing", "unknown", "shape"])
async def test_weights_that_do_not_fit_are_refused_whole(broken: str) -> None:
    model = small_model(seed=0)
    state = dict(small_model(seed=1).state_dict())
    name = "model.layers.1.mlp.up_proj.weight"
    if broken == "missing":
        del state[name]
    elif broken == "unknown":
        state["model.layers.9.mlp.up_proj.weight"] = state[name]
    else:
        state[name] = state[name][:-1]
    async with engine_of(model) as engine:
        with pytest.raises(ValueError, match="new weight"):
            await engine.update_weights(state, 1)
        answer = await engine.generate(ask([1, 2, 3]))
    assert answer.versions == (0,) * 6
    assert answer.logprobs == pytest.approx(fresh_logprobs(model, [1, 2, 3], answer.token_ids), abs=1e-5)


@pytest.mark.asyncio
async def test_weights_that_are_not_numbers_fail_the_request() -> None:
    async with engine_of(small_model()) as engine:
        await engine.update_weights(
            {k: torch.full_like(v, torch.nan) for k, v in small_model().state_dict().items()}, 3
        )
        with pytest.raises(EngineError, match="version 3 give logits that are not numbers"):
            await engine.generate(ask([1, 2, 3]))
        await engine.update_weights(small_model().state_dict(), 4)
        assert (await engine.generate(ask([1, 2, 3]))).versions == (4,) * 6
