"""The seam between rollouts and whatever generates tokens.

Token ids in, token ids and behaviour logprobs out. An engine knows nothing of environments; a
rollout knows nothing of batching. This module imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

FinishReason = Literal["stop", "length", "abort"]
InFlight = Literal["abort", "keep", "recompute"]
"""What becomes of requests under way when new weights arrive: they end with what they have (finish_reason
`abort`), finish on the old weights, or have their context computed anew and go on with the new ones."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. `temperature=0` is greedy (logprobs then are those of temperature 1)."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: off."""
    max_tokens: int = 16
    stop_ids: tuple[int, ...] = ()
    """Generation ends with (and includes) the first of these."""
    seed: int | None = None
    """With a seed the tokens depend on (weights, prompt, seed) alone, never on the batch."""


@dataclass(frozen=True)
class Request:
    """One action to generate."""

    id: str
    trajectory_id: str
    """Requests of one trajectory share a KV slot: a prompt that extends the last one costs only its new tokens."""
    prompt_ids: Sequence[int]
    """The whole context, from the first token."""
    sampling: Sampling
    choices: Sequence[Sequence[int]] | None = None
    """Constrained decoding: the generated tokens are one of these sequences (stop token included);
    each step samples over the tokens that continue at least one of them, renormalised."""
    engine: int = 0
    """With several engines: the one that the scheduler chose. A trajectory never changes engines while it lives."""


@dataclass(frozen=True)
class Generation:
    """What was generated; the three tuples have one length."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Log-probability of each token under the distribution it was sampled from."""
    versions: tuple[int, ...]
    """Policy version whose weights produced each token."""
    finish_reason: FinishReason
    allowed: tuple[tuple[int, ...], ...] | None = None
    """With `choices`: the token ids that were allowed at each token."""


class EngineError(Exception):
    """Generation failed for a reason that is not the policy's; the trajectory becomes an infra_error."""


class EnginesExhausted(EngineError):
    """No engine will ever generate again: the last one broke down, and the restarts are used up."""


class Engine(Protocol):
    """Safe to call from many tasks of one event loop."""

    async def generate(self, request: Request) -> Generation:
        """Queue the request and return once it stopped.

        Raises:
            EngineError: the engine failed or was closed; ValueError: the prompt does not fit.
        """

    async def abort(self, request_id: str) -> None:
        """End a request now; its `generate` returns what it has with finish_reason `abort`. Unknown ids are ignored."""

    async def release(self, trajectory_id: str) -> None:
        """The trajectory is over: its KV slot may be reused."""

    async def suspend(self) -> None:
        """Stop between two decode steps; requests wait."""

    async def update_weights(self, state: Mapping[str, Any], version: int, in_flight: InFlight = "recompute") -> None:
        """Swap weights between two decode steps. Tokens sampled with them carry `version`, and cached
        context is recomputed with them before the next token that depends on it; `in_flight` says what
        requests under way do. Every token's version and logprob are those of the weights that sampled it."""

    async def resume(self) -> None:
        """Go on after `suspend`."""

    async def close(self) -> None:
        """Stop; pending requests fail with EngineError."""

    def metrics(self) -> Mapping[str, float]:
        """Counters: `tokens_generated`, `tokens_prefilled`, `tokens_reused`, `busy_s`, `idle_s`, `steps`."""
