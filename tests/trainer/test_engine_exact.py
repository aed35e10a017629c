"""An exact engine: tokens and log-probabilities are a function of weights, prompt and seed, bit for bit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from engine_cases import VOCABULARY, ask, fresh_logprobs, small_model
from hypothesis import given
from hypothesis import strategies as st

from rocknroll.trainer.engines import batcher
from rocknroll.trainer.engines.base import Generation, Request
from rocknroll.trainer.engines.exact import LENGTH_STEP, MOST_PADDING, padded_length
from rocknroll.trainer.engines.forward import ModuleForward
from rocknroll.trainer.engines.fused import FusedForward
from rocknroll.trainer.engines.local import LocalEngine
from rocknroll.trainer.engines.probe import is_exact
from rocknroll.trainer.recipe import Recipe

LENGTH = 900
measured_kernels = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX2",
    reason="the shapes of exact.py were measured with AVX2 kernels; elsewhere an engine may say that it is not exact",
)


def requests_of(seed: int) -> list[Request]:
    """Requests of all lengths up to LENGTH; some share a long beginning, some are turns of one trajectory."""
    pick = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [pick.randrange(VOCABULARY) for _ in range(count)]

    stems = [tokens(count) for count in (40, 190, 380, 600)]
    requests = []
    for n in range(24):
        prompt = [*pick.choice([[], *stems]), *tokens(pick.choice((1, 2, 3, 5, 20, 100)))]
        choices = [[*tokens(3), end] for end in (1, 2, 3)] if n % 4 == 0 else None
        settings: dict[str, Any] = {"seed": n, "max_tokens": pick.choice((1, 4, 12))}
        if n % 5 == 0:
            settings |= {"temperature": 0.7, "top_k": 7}
        requests.append(ask(prompt, name=f"r{n}", trajectory=f"t{pick.randrange(12)}", choices=choices, **settings))
    return requests


async def answers(
    model: Any, requests: Sequence[Request], slots: int, apart: random.Random | None = None
) -> dict[str, Generation]:
    """The requests' answers: one after the other, or some asked for while others are under way."""
    engine = LocalEngine(model, slots=slots, max_length=LENGTH, bit_exact=True)
    assert engine.bit_exact

    async def later(request: Request) -> tuple[str, Generation]:
        for _ in range(apart.choice((0, 0, 1, 30)) if apart else 0):
            await asyncio.sleep(0)
        return request.id, await engine.generate(request)

    try:
        if apart is None:
            return dict([await later(request) for request in requests])
        return dict(await asyncio.gather(*map(later, requests)))
    finally:
        await engine.close()


@measured_kernels
@pytest.mark.asyncio
@pytest.mark.parametrize("path", ["fused", "module"])
@pytest.mark.parametrize(("family", "heads"), [("qwen3", (4, 4)), ("llama", (4, 1)), ("qwen2", (6, 3))])
async def test_answers_have_the_same_bits_in_any_company(
    family: str, heads: tuple[int, int], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path == "module":
        monkeypatch.setattr(FusedForward, "serves", lambda model: False)
    shape = {"num_attention_heads": heads[0], "num_key_value_heads": heads[1], "hidden_size": 16 * heads[0]}
    shape |= {"max_position_embeddings": 1024, **({"head_dim": 16} if family == "qwen3" else {})}
    model = small_model(family, **shape)
    requests = requests_of(len(family))
    alone = await answers(model, requests, slots=1)
    for seed, slots, chunk in ((1, 3, 256), (2, 8, 37), (3, 24, 130)):
        shuffled = random.Random(seed).sample(requests, len(requests))
        monkeypatch.setattr(batcher, "PREFILL_CHUNK", chunk)
        assert await answers(model, shuffled, slots, apart=random.Random(seed)) == alone
    some = requests[7]
    allowed = alone[some.id].allowed if some.choices is not None else None
    expected = fresh_logprobs(model, some.prompt_ids, alone[some.id].token_ids, allowed=allowed)
    assert alone[some.id].logprobs == pytest.approx(expected, abs=1e-5)


@measured_kernels
@pytest.mark.parametrize("path", [FusedForward, ModuleForward])
def test_trial_tells_an_exact_forward_from_one_that_is_not(path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = path(small_model(max_position_embeddings=1024))
    assert is_exact(forward, VOCABULARY, LENGTH)
    make_store = forward.new_store
    monkeypatch.setattr(forward, "new_store", lambda slots, length, exact: make_store(slots, length))
    assert not is_exact(forward, VOCABULARY, LENGTH)


@pytest.mark.asyncio
@pytest.mark.parametrize("settings", [{"threads": 2}, {"bit_exact": False}])
async def test_engine_claims_to_be_exact_only_when_it_is(settings: dict[str, Any]) -> None:
    engine = LocalEngine(small_model(), slots=2, max_length=64, **{"bit_exact": True, **settings})
    try:
        assert not engine.bit_exact
    finally:
        await engine.close()


@given(st.integers(1, 5000))
def test_padded_length_is_the_next_that_no_kernel_cuts_in_half(length: int) -> None:
    padded = padded_length(length)
    assert length <= padded <= length + MOST_PADDING
    assert padded % LENGTH_STEP == 0 and not 192 < padded % 512 < 384
    assert padded_length(padded) == padded


@pytest.mark.parametrize(
    ("settings", "exact"),
    [
        ({"rollout": {"async_ratio": 0}}, True),
        ({"rollout": {"async_ratio": 1}}, False),
        ({"rollout": {"async_ratio": 0}, "engine": {"threads": 2}}, False),
        ({"rollout": {"async_ratio": 1}, "engine": {"bit_exact": True}}, True),
        ({"rollout": {"async_ratio": 0}, "engine": {"bit_exact": False}}, False),
    ],
)
def test_synchronous_recipes_are_exact_unless_they_say_otherwise(settings: dict[str, Any], exact: bool) -> None:
    assert Recipe(**settings).bit_exact is exact


def test_recipe_cannot_ask_for_exact_results_of_several_threads() -> None:
    with pytest.raises(ValueError, match=r"needs `engine.threads` to be 1"):
        Recipe(engine={"bit_exact": True, "threads": 2})
