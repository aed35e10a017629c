"""A request while an engine works on it, and the reply that its caller waits for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rocknroll.trainer.engines.base import FinishReason, Generation, Request
from rocknroll.trainer.engines.choices import Tree
from rocknroll.trainer.engines.sampler import Draw, Drawn
from rocknroll.trainer.engines.slots import Slot
from rocknroll.trainer.engines.weights import WeightSet


class Reply:
    """A future of the caller's event loop that a worker thread can fulfil."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self._loop.create_future()

    def give(self, value: Any) -> None:
        self._call(self.future.set_result, value)

    def fail(self, error: Exception) -> None:
        self._call(self.future.set_exception, error)

    def _call(self, settle: Callable[[Any], None], outcome: Any) -> None:
        def unless_cancelled() -> None:
            if not self.future.done():
                settle(outcome)

        # A closed loop has nobody left who waits for the reply.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(unless_cancelled)


@dataclass(eq=False)
class Waiting:
    """A request that has no slot yet."""

    request: Request
    prompt: list[int]
    reply: Reply
    random: random.Random
    limit: int
    """Tokens to generate at most."""
    tree: Tree | None
    """Constrained decoding: what may follow."""


@dataclass(eq=False)
class Run:
    """A request that has a slot, and the weights that serve it."""

    asked: Waiting
    slot: Slot
    weights: WeightSet
    tree: Tree | None
    begun: bool = False
    """A forward pass has seen some of it, or it has tokens: other weights would be a change under way."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    allowed: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def request(self) -> Request:
        return self.asked.request

    def draw(self) -> Draw:
        """How its next token is drawn; uses up one random number."""
        sampling = self.request.sampling
        allowed = None if self.tree is None else tuple(self.tree)
        return Draw(sampling.temperature, sampling.top_k, sampling.top_p, self.asked.random.random(), allowed)

    def add(self, drawn: Drawn) -> FinishReason | None:
        """Append a token; why the request is finished with it, if it is."""
        self.begun = True
        self.slot.tokens.append(drawn.token)
        self.tokens.append(drawn.token)
        self.logprobs.append(drawn.logprob)
        self.versions.append(self.weights.version)
        if self.tree is not None:
            assert drawn.allowed is not None
            self.allowed.append(drawn.allowed)
            self.tree = self.tree[drawn.token]
            return None if self.tree else "stop"
        if drawn.token in self.request.sampling.stop_ids:
            return "stop"
        return "length" if len(self.tokens) >= self.asked.limit else None

    def finish(self, reason: FinishReason) -> None:
        """Tell the caller what it got."""
        allowed = tuple(self.allowed) if self.request.choices is not None else None
        self.asked.reply.give(
            Generation(tuple(self.tokens), tuple(self.logprobs), tuple(self.versions), reason, allowed)
        )
