"""The engine over a real vLLM on CPU: what its tokens and log-probabilities are, and what new weights do to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
import vllm_cases as cases
from engine_cases import ask, fresh_logprobs

from rocknroll.trainer.controller import write_weights
from rocknroll.trainer.engines.base import EngineError, Generation, InFlight, Request
from rocknroll.trainer.engines.vllm.client import Client
from rocknroll.trainer.engines.vllm.engine import VLLMEngine
from rocknroll.trainer.engines.vllm.server import Server
from rocknroll.trainer.engines.weights_file import WeightsFile

# Beside other tests vLLM's front answers seconds after its engine has done what is to be stopped in the middle.
pytestmark = [pytest.mark.alone, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]

MODELS = [cases.model(seed) for seed in range(3)]
PROMPT = [5, 6, 7, 8, 9]
LENGTH = cases.SHAPE.max_length
SOME, LONG = 200, LENGTH - 50
"""Tokens of requests that are still under way when a test has seen them begin."""
EXACT = 1e-4
"""How far log-probabilities may be off in float32; measured: 1e-6. The models themselves are far apart."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VLLMEngine]:
    folder = tmp_path_factory.mktemp("vllm")
    policy = cases.saved(folder / "policy")
    made = cases.engine(cases.launch(policy, cases.installed(), folder / "server.log"), cases.served(policy))
    try:
        await made.ready()
        yield made
    finally:
        await made.close()


@pytest_asyncio.fixture(loop_scope="module")
async def engine(started: VLLMEngine) -> VLLMEngine:
    """The server, with the weights of version 0; it works, whatever the test before has left behind."""
    await started.update_weights(MODELS[0].state_dict(), 0, "abort")
    await started.resume()
    return started


def expected(version: int, request: Request, answer: Generation) -> list[float]:
    """What the models say of an answer's tokens."""
    return fresh_logprobs(MODELS[version], request.prompt_ids, answer.token_ids, request.sampling.temperature or 1.0)


@asynccontextmanager
async def under_way(engine: VLLMEngine, count: int, tokens: int) -> AsyncIterator[list[asyncio.Task[Generation]]]:
    """Long requests, each of which has some of its tokens."""
    requests = [ask([*PROMPT, n], name=f"long{n}", trajectory=str(n), seed=n, max_tokens=tokens) for n in range(count)]
    tasks = [asyncio.create_task(engine.generate(request)) for request in requests]

    async def until(condition: Callable[[], Awaitable[bool]]) -> None:
        while not await condition():
            assert not any(task.done() for task in tasks), "they ended while nobody looked"
            await asyncio.sleep(0.005)

    async def all_run() -> bool:
        return await running(engine) == count

    async def all_have_some() -> bool:
        return await decoded(engine) >= before + 10 * count

    await until(all_run)
    before = await decoded(engine)  # from here on each step of the server decodes a token of each
    await until(all_have_some)
    yield tasks


async def decoded(engine: VLLMEngine) -> float:
    """Tokens that the server generated so far, unfinished requests included."""
    return await figure(engine, "vllm:generation_tokens_total{")


async def running(engine: VLLMEngine) -> float:
    """Requests that the server works on."""
    return await figure(engine, "vllm:num_requests_running{")


async def figure(engine: VLLMEngine, name: str) -> float:
    told = await engine._connected()._http.get("/metrics")
    (line,) = (line for line in told.text.splitlines() if line.startswith(name))
    return float(line.split()[-1])


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_logprobs_are_those_of_the_distribution_that_was_sampled(engine: VLLMEngine, temperature: float) -> None:
    request = ask(PROMPT, max_tokens=40, temperature=temperature)
    answer = await engine.generate(request)
    assert (len(answer.token_ids), answer.finish_reason, set(answer.versions)) == (40, "length", {0})
    assert answer.logprobs == pytest.approx(expected(0, request, answer), abs=EXACT)


async def test_greedy_tokens_are_the_most_likely_and_have_the_logprobs_of_temperature_one(engine: VLLMEngine) -> None:
    request = ask(PROMPT, temperature=0.0, max_tokens=12)
    answer = await engine.generate(request)
    with torch.no_grad():
        logits = MODELS[0](torch.tensor([[*PROMPT, *answer.token_ids]])).logits[0, len(PROMPT) - 1 : -1]
    assert answer.token_ids == tuple(logits.argmax(-1).tolist())
    assert answer.logprobs == pytest.approx(expected(0, request, answer), abs=EXACT)


async def test_tokens_depend_on_the_seed_and_not_on_the_company(engine: VLLMEngine) -> None:
    alone = await engine.generate(ask(PROMPT, max_tokens=20))
    company = [ask([*PROMPT, n], name=f"c{n}", seed=n, max_tokens=20) for n in range(6)]
    again, other, *_ = await asyncio.gather(
        engine.generate(ask(PROMPT, max_tokens=20)),
        engine.generate(ask(PROMPT, name="other", seed=8, max_tokens=20)),
        *map(engine.generate, company),
    )
    assert again.token_ids == alone.token_ids != other.token_ids


async def test_generation_ends_with_the_first_stop_token_and_with_nothing_else(engine: VLLMEngine) -> None:
    answer = await engine.generate(ask(PROMPT, max_tokens=60))
    stop = answer.token_ids[20]
    stopped = await engine.generate(ask(PROMPT, max_tokens=60, stop_ids=(stop,)))
    first = answer.token_ids.index(stop)
    assert (stopped.token_ids, stopped.finish_reason) == (answer.token_ids[: first + 1], "stop")
    ends = await engine.generate(ask(PROMPT, max_tokens=400, temperature=1.5))
    assert MODELS[0].config.eos_token_id in ends.token_ids[:-1]


async def test_a_turn_reuses_the_context_of_the_turns_before(engine: VLLMEngine) -> None:
    first = ask(list(range(5, 28)) * 5, max_tokens=20)
    answer = await engine.generate(first)
    before = engine.metrics()
    await engine.generate(ask([*first.prompt_ids, *answer.token_ids, 5, 6], max_tokens=5))
    after = engine.metrics()
    assert after["tokens_reused"] - before["tokens_reused"] >= 128
    assert after["tokens_prefilled"] - before["tokens_prefilled"] <= 137 - 128


async def test_choices_are_sampled_among_what_continues_them(engine: VLLMEngine) -> None:
    choices = [[5, 6, 2], [5, 7, 7, 2], [5, 7, 8, 9, 2], [10, 2]]
    trees = {(): (5, 10), (5,): (6, 7), (5, 6): (2,), (5, 7): (7, 8), (10,): (2,)}
    requests = [ask(PROMPT, name=f"x{n}", seed=n, choices=choices, max_tokens=1, temperature=2.0) for n in range(24)]
    answers = await asyncio.gather(*map(engine.generate, requests))
    assert len({answer.token_ids for answer in answers}) >= 3
    for request, answer in zip(requests, answers, strict=True):
        assert list(answer.token_ids) in choices and answer.finish_reason == "stop"
        assert answer.allowed is not None
        for place, allowed in enumerate(answer.allowed[:2]):
            assert allowed == trees[answer.token_ids[:place]]
        fresh = fresh_logprobs(MODELS[0], PROMPT, answer.token_ids, request.sampling.temperature, answer.allowed)
        assert answer.logprobs == pytest.approx(fresh, abs=EXACT)


async def test_aborted_request_returns_what_it_has_and_frees_its_place(engine: VLLMEngine) -> None:
    async with under_way(engine, 1, tokens=LONG) as (task,):
        await engine.abort("long0")
        answer = await task
    assert answer.finish_reason == "abort" and 10 <= len(answer.token_ids) < LONG
    assert answer.logprobs == pytest.approx(fresh_logprobs(MODELS[0], [*PROMPT, 0], answer.token_ids), abs=EXACT)
    await engine.abort("nobody")
    assert (await engine.generate(ask(PROMPT))).finish_reason == "length"


async def test_cancelled_request_leaves_the_server(engine: VLLMEngine) -> None:
    async with under_way(engine, 1, tokens=LONG) as (task,):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    while await running(engine):
        await asyncio.sleep(0.02)
    assert not engine._calls


@pytest.mark.parametrize("as_file", [True, False])
async def test_new_weights_change_tokens_and_logprobs(engine: VLLMEngine, as_file: bool, tmp_path: Path) -> None:
    request = ask(list(range(5, 28)) * 4, max_tokens=30)
    old = await engine.generate(request)
    state: Any = MODELS[1].state_dict()
    if as_file:
        state = WeightsFile(write_weights(state, tmp_path / "weights.safetensors"))
    await engine.update_weights(state, 1)
    new = await engine.generate(request)
    assert (set(old.versions), set(new.versions)) == ({0}, {1})
    assert old.token_ids != new.token_ids
    assert new.logprobs == pytest.approx(expected(1, request, new), abs=EXACT)
    assert new.logprobs != pytest.approx(expected(0, request, new), abs=0.1)


async def test_requests_wait_while_the_engine_is_suspended(engine: VLLMEngine) -> None:
    async with under_way(engine, 1, tokens=SOME) as (begun,):
        await engine.suspend()
        before = await decoded(engine)
        waiting = asyncio.create_task(engine.generate(ask(PROMPT, name="waiting")))
        await asyncio.sleep(0.3)
        assert await decoded(engine) == before and not begun.done() and not waiting.done()
        await engine.update_weights(MODELS[1].state_dict(), 1)
        await engine.resume()
        answers = await asyncio.gather(begun, waiting)
    assert [set(answer.versions) for answer in answers] == [{0, 1}, {1}]


@pytest.mark.parametrize("suspended", [True, False])
@pytest.mark.parametrize("mode", ["abort", "keep", "recompute"])
async def test_requests_under_way_do_what_the_mode_says(engine: VLLMEngine, mode: InFlight, suspended: bool) -> None:
    async with under_way(engine, 4, tokens=LONG if mode == "abort" else SOME) as tasks:
        if suspended:
            await engine.suspend()
        await engine.update_weights(MODELS[2].state_dict(), 2, mode)
        if suspended:
            await engine.resume()
        answers = await asyncio.gather(*tasks)
    after = await engine.generate(ask(PROMPT))
    assert set(after.versions) == {2}
    for n, answer in enumerate(answers):
        cut = answer.finish_reason == "abort"
        swap = answer.versions.index(2) if 2 in answer.versions else len(answer.versions)
        assert answer.versions == (0,) * swap + (2,) * (len(answer.versions) - swap)
        assert (cut, swap < len(answer.versions), len(answer.versions) == SOME) == {
            "abort": (True, False, False),
            "keep": (False, False, True),
            "recompute": (False, True, True),
        }[mode]
        by_old, by_new = (fresh_logprobs(MODELS[v], [*PROMPT, n], answer.token_ids) for v in (0, 2))
        assert answer.logprobs == pytest.approx(by_old[:swap] + by_new[swap:], abs=EXACT)


async def test_choices_under_way_do_what_the_mode_says(engine: VLLMEngine) -> None:
    choices = [[*path, 2] for path in product([5, 7], repeat=9)]
    for version, mode in ((1, "abort"), (2, "recompute"), (0, "keep")):
        before = (await engine.generate(ask(PROMPT))).versions[0]
        task = asyncio.create_task(engine.generate(ask(PROMPT, choices=choices)))
        while not (engine._calls and engine._calls["r"].tokens):
            await asyncio.sleep(0.001)
            assert not task.done()
        had = len(engine._calls["r"].tokens)
        await engine.update_weights(MODELS[version].state_dict(), version, mode)  # type: ignore[arg-type]
        answer = await task
        assert len(answer.token_ids) >= had and answer.allowed is not None
        assert (answer.finish_reason == "abort") == (mode == "abort") == (len(answer.token_ids) < 10)
        swap = answer.versions.index(version) if version in answer.versions else len(answer.versions)
        assert set(answer.versions[:swap]) == {before}
        assert (swap < len(answer.versions)) == (mode == "recompute")
        by_old, by_new = (
            fresh_logprobs(MODELS[v], PROMPT, answer.token_ids, 1.0, answer.allowed) for v in (before, version)
        )
        assert answer.logprobs == pytest.approx(by_old[:swap] + by_new[swap:], abs=EXACT)


async def test_weights_that_do_not_fit_are_refused_and_disturb_nobody(engine: VLLMEngine) -> None:
    state = MODELS[1].state_dict()
    wrong = {**state, "model.norm.weight": torch.zeros(3)}
    with pytest.raises(ValueError, match=r"model.norm.weight has shape \[3\], not \[64\]"):
        await engine.update_weights(wrong, 1)
    with pytest.raises(ValueError, match=r"unknown \['strange'\]"):
        await engine.update_weights({**state, "strange": torch.zeros(3)}, 1)
    answer = await engine.generate(ask(PROMPT))
    assert set(answer.versions) == {0}


async def test_probe_finds_a_server_whose_weights_are_not_the_policys(engine: VLLMEngine, tmp_path: Path) -> None:
    client = engine._connected()
    await engine._policy.probe(client, 0)
    nearly = cases.model(0)
    with torch.no_grad():
        nearly.model.norm.weight.mul_(1.05)
    other = cases.served(cases.saved(tmp_path / "policy"))
    await other.follow(nearly.state_dict(), 1)
    with pytest.raises(EngineError, match="does not compute what version 1 of the policy computes"):
        await other.probe(client, 1)


async def test_server_with_another_tokenizer_is_refused(engine: VLLMEngine, tmp_path: Path) -> None:
    folder = cases.saved(tmp_path / "policy")
    policy = cases.served(folder)
    policy._tokenizer = cases.tokenizer(f"{cases.TEXT} desk desk")
    with pytest.raises(EngineError, match="has another tokenizer than the learner"):
        await policy.examine(engine._connected())


async def test_server_that_runs_already_gets_the_first_weights(engine: VLLMEngine, tmp_path: Path) -> None:
    """Over TCP, as servers are that somebody else started."""
    await engine.update_weights(MODELS[2].state_dict(), 2)
    assert engine._server is not None
    socket = engine._server.address

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_unix_connection(str(socket))
        await asyncio.gather(pour(reader, ours), pour(theirs, writer))

    async with await asyncio.start_server(forward, "127.0.0.1", 0) as relay:
        url = f"http://127.0.0.1:{relay.sockets[0].getsockname()[1]}"
        given = cases.engine(url, cases.served(cases.saved(tmp_path / "policy")))
        await given.ready()
        request = ask(PROMPT, max_tokens=20)
        answer = await given.generate(request)
        await given.close()
    assert set(answer.versions) == {0}
    assert answer.logprobs == pytest.approx(expected(0, request, answer), abs=EXACT)
    assert await Client(socket).healthy(), "a server that is not the engine's own stays"


async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def test_sockets_of_the_servers_processes_go_with_its_folder(engine: VLLMEngine) -> None:
    assert isinstance(engine._server, Server)
    sockets = {file for file in engine._server.address.parent.iterdir() if file.is_socket()}
    assert len(sockets) > 1 and engine._server.address in sockets


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        (ask([]), "prompt is empty"),
        (ask([5] * LENGTH), f"do not fit into {LENGTH}"),
        (ask([10_000]), "outside the vocabulary"),
        (ask(PROMPT, temperature=0.001), "temperature 0 or at 0.01 and more"),
        (ask(PROMPT, top_p=0.0), "impossible sampling"),
    ],
)
async def test_requests_that_cannot_be_served_are_refused(
    engine: VLLMEngine, request_: Request, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        await engine.generate(request_)


async def test_context_fills_up_to_its_end(engine: VLLMEngine) -> None:
    answer = await engine.generate(ask([5] * (LENGTH - 12), max_tokens=100))
    assert (len(answer.token_ids), answer.finish_reason) == (12, "length")
