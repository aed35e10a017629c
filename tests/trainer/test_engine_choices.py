"""Constrained decoding: one of the given sequences, with the probabilities that the learner can repeat."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from engine_cases import ask, engine_of, fresh_logprobs, small_model

from rocknroll.trainer.engines.choices import prefix_tree

END = 2
CHOICES = ([5, 6, END], [5, 7, 8, END], [9, END], [5, 7, 10, END])


@pytest.mark.asyncio
async def test_answer_is_one_of_the_choices_with_renormalised_logprobs() -> None:
    model = small_model()
    async with engine_of(model, slots=8) as engine:
        requests = [ask([1, 2, 3], trajectory=str(n), seed=n, choices=CHOICES, temperature=1.5) for n in range(40)]
        answers = await asyncio.gather(*map(engine.generate, requests))
    assert len({answer.token_ids for answer in answers}) > 1
    for answer in answers:
        assert list(answer.token_ids) in CHOICES
        assert answer.finish_reason == "stop"
        assert answer.allowed is not None
        expected = fresh_logprobs(model, [1, 2, 3], answer.token_ids, 1.5, answer.allowed)
        assert answer.logprobs == pytest.approx(expected, abs=1e-5)


@pytest.mark.asyncio
async def test_allowed_tokens_are_those_that_continue_a_choice() -> None:
    async with engine_of(small_model()) as engine:
        answers = [await engine.generate(ask([1], seed=n, choices=CHOICES)) for n in range(20)]
    (answer,) = {a for a in answers if a.token_ids == (5, 7, 8, END)} or {None}
    assert answer is not None
    assert [set(ids) for ids in answer.allowed or ()] == [{5, 9}, {6, 7}, {8, 10}, {END}]


@pytest.mark.asyncio
async def test_tokens_without_alternative_cost_no_step() -> None:
    async with engine_of(small_model()) as engine:
        answer = await engine.generate(ask([1, 2], choices=[[5, 6, 7, END]]))
        assert engine.metrics()["tokens_prefilled"] == 0
    assert (answer.token_ids, answer.logprobs) == ((5, 6, 7, END), (0.0,) * 4)
    assert answer.allowed == ((5,), (6,), (7,), (END,))


@pytest.mark.asyncio
async def test_choices_are_not_cut_by_the_token_limit() -> None:
    async with engine_of(small_model()) as engine:
        answer = await engine.generate(ask([1], choices=[[5] * 9 + [6], [5] * 9 + [7]], max_tokens=4))
    assert len(answer.token_ids) == 10


@pytest.mark.asyncio
async def test_choices_follow_their_probabilities() -> None:
    model = small_model()
    async with engine_of(model, slots=32) as engine:
        requests = [ask([1, 2, 3], trajectory=str(n % 32), name=str(n), seed=n, choices=CHOICES) for n in range(1500)]
        answers = await asyncio.gather(*map(engine.generate, requests))
    counts = Counter(answer.token_ids for answer in answers)
    for answer in {a.token_ids: a for a in answers}.values():
        probability = 2.718281828 ** sum(answer.logprobs)
        assert counts[answer.token_ids] / 1500 == pytest.approx(probability, abs=0.05)


@pytest.mark.asyncio
async def test_top_k_narrows_what_is_reported_as_allowed() -> None:
    model = small_model()
    async with engine_of(model) as engine:
        answer = await engine.generate(ask([1, 2, 3], choices=[[n, END] for n in range(3, 12)], top_k=2))
    assert answer.allowed is not None
    assert len(answer.allowed[0]) == 2
    assert answer.logprobs == pytest.approx(
        fresh_logprobs(model, [1, 2, 3], answer.token_ids, 1.0, answer.allowed), abs=1e-5
    )


@pytest.mark.parametrize("choices", [[[1, 2], [1, 2, 3]], [[1, 2, 3], [1, 2]], [[1], []]])
def test_choice_that_begins_with_another_is_refused(choices: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="choice"):
        prefix_tree(choices)


@pytest.mark.parametrize("choices", [[], [[]]])
def test_nothing_to_choose_is_refused(choices: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="at least one choice"):
        prefix_tree(choices)


def test_repeated_choices_are_one() -> None:
    assert prefix_tree([[1, 2], [1, 2], [1, 3]]) == {1: {2: {}, 3: {}}}
