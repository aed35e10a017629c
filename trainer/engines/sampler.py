"""Draws one token per row and says with which log-probability it was drawn.

The log-probability is exact for the distribution that was sampled: log_softmax(logits / T) over the
allowed tokens, renormalised after top-k and top-p. Each row brings its own uniform number, so a
token depends on its own row alone, whatever else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_ALMOST_ONE = 1.0 - 2.0**-40
"""Keeps `uniform * total` below the total in float64, so that the search always ends inside."""


@dataclass(frozen=True)
class Draw:
    """What one row wants; the fields mean what they mean in `Sampling`."""

    temperature: float
    top_k: int
    top_p: float
    uniform: float
    """Uniform in [0, 1)."""
    allowed: tuple[int, ...] | None
    """Constrained decoding: the only tokens that may be drawn."""


@dataclass(frozen=True)
class Drawn:
    """Token, its log-probability, and (constrained rows) the tokens that had a chance."""

    token: int
    logprob: float
    allowed: tuple[int, ...] | None


def draw_tokens(logits: Tensor, draws: Sequence[Draw]) -> list[Drawn]:
    """One token for each row of `logits` [B, V]."""
    scores = logits.float()
    temperatures = {draw.temperature or 1.0 for draw in draws}
    if temperatures != {1.0}:
        scores = scores / scores.new_tensor([draw.temperature or 1.0 for draw in draws])[:, None]
    if any(draw.allowed is not None for draw in draws):
        scores = _only_allowed(scores, draws)
    filtered = [i for i, draw in enumerate(draws) if draw.temperature and (draw.top_k > 0 or draw.top_p < 1.0)]
    if filtered:
        scores = scores.clone()
        scores[filtered] = _filter(scores[filtered], [draws[i] for i in filtered])
    logprobs = torch.log_softmax(scores, dim=-1)
    tokens = _sample(logprobs, draws)
    chosen = logprobs.gather(1, tokens[:, None])[:, 0]
    result = zip(tokens.tolist(), chosen.tolist(), draws, strict=True)
    support = {i: _support(scores[i]) for i in filtered if draws[i].allowed is not None}
    return [Drawn(token, p, support.get(i, draw.allowed)) for i, (token, p, draw) in enumerate(result)]


def _only_allowed(scores: Tensor, draws: Sequence[Draw]) -> Tensor:
    allowed = [(i, token) for i, draw in enumerate(draws) if draw.allowed is not None for token in draw.allowed]
    rows, columns = torch.tensor(allowed, device=scores.device).unbind(1)
    closed = torch.tensor([draw.allowed is not None for draw in draws], device=scores.device)
    result = scores.masked_fill(closed[:, None], -torch.inf)
    result[rows, columns] = scores[rows, columns]
    return result


def _filter(scores: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Top-k, then the smallest set of most likely tokens that holds at least top-p of the rest."""
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)
    vocabulary = scores.shape[-1]
    top_k = torch.tensor([draw.top_k or vocabulary for draw in draws], device=scores.device)[:, None]
    rank = torch.arange(vocabulary, device=scores.device)
    ordered = ordered.masked_fill(rank >= top_k, -torch.inf)
    top_p = scores.new_tensor([draw.top_p for draw in draws])[:, None]
    before = torch.softmax(ordered, dim=-1).cumsum(dim=-1).roll(1, dims=-1)
    ordered = ordered.masked_fill((before >= top_p) & (rank > 0), -torch.inf)
    return torch.empty_like(scores).scatter_(1, order, ordered)


def _sample(logprobs: Tensor, draws: Sequence[Draw]) -> Tensor:
    greedy = [draw.temperature == 0 for draw in draws]
    if all(greedy):
        return logprobs.argmax(dim=-1)
    cumulative = logprobs.double().exp_().cumsum_(dim=-1)
    uniform = cumulative.new_tensor([min(draw.uniform, _ALMOST_ONE) for draw in draws])[:, None]
    tokens = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)[:, 0]
    # Weights that are not numbers lead past the end; the caller sees it by the log-probability.
    tokens = tokens.clamp_(max=logprobs.shape[-1] - 1)
    if any(greedy):
        tokens = torch.where(torch.tensor(greedy, device=tokens.device), logprobs.argmax(dim=-1), tokens)
    return tokens


def _support(scores: Tensor) -> tuple[int, ...]:
    return tuple(torch.isfinite(scores).nonzero()[:, 0].tolist())
