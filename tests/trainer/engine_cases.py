"""Small models and the reference that engine tests compare with: one plain forward pass over the whole context."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from rocknroll.trainer.engines.base import Generation, Request, Sampling
from rocknroll.trainer.engines.local import LocalEngine

VOCABULARY = 40
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 8}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
}


def small_model(family: str = "qwen3", seed: int = 0, tied: bool = True, **settings: Any) -> Any:
    """A model of two layers whose distributions are far from uniform."""
    config, model_class, own = FAMILIES[family]
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": tied,
        "initializer_range": 0.15,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config(**{**shape, **own, **settings}))
        for parameter in model.parameters():
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def fresh_logprobs(
    model: Any,
    prompt: Sequence[int],
    tokens: Sequence[int],
    temperature: float = 1.0,
    allowed: Sequence[Sequence[int]] | None = None,
) -> list[float]:
    """Log-probabilities of `tokens` behind `prompt`, by one forward pass over all of it."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1] / temperature
    if allowed is not None:
        closed = torch.full_like(logits, -torch.inf)
        for row, ids in enumerate(allowed):
            closed[row, list(ids)] = 0.0
        logits = logits + closed
    return torch.log_softmax(logits, -1)[range(len(tokens)), list(tokens)].tolist()


def ask(
    prompt: Sequence[int],
    *,
    name: str = "r",
    trajectory: str = "t",
    choices: Sequence[Sequence[int]] | None = None,
    **sampling: Any,
) -> Request:
    """A request with a seed, so that a failing test fails again."""
    return Request(name, trajectory, prompt, Sampling(**{"seed": 7, "max_tokens": 6, **sampling}), choices)


@asynccontextmanager
async def engine_of(model: Any, slots: int = 4, max_length: int = 128) -> AsyncIterator[LocalEngine]:
    engine = LocalEngine(model, slots=slots, max_length=max_length)
    try:
        yield engine
    finally:
        await engine.close()


async def play(engine: LocalEngine, trajectory: str, turns: Sequence[Sequence[int]], **sampling: Any) -> list[Turn]:
    """An episode of several turns; what was asked and answered in each."""
    context: list[int] = []
    played = []
    for number, observation in enumerate(turns):
        context += observation
        settings = {"seed": number, **sampling}
        request = ask(list(context), name=f"{trajectory}-{number}", trajectory=trajectory, **settings)
        generation = await engine.generate(request)
        played.append((list(context), generation))
        context += generation.token_ids
        await asyncio.sleep(0)
    return played


Turn = tuple[list[int], Generation]
