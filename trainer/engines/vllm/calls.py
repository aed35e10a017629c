"""A `generate` call while a server works on it, and the clock that tells a slow server from a hung one."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rocknroll.trainer.engines.base import FinishReason, Generation, Request, Sampling
from rocknroll.trainer.engines.choices import Tree
from rocknroll.trainer.engines.vllm.client import Answer


@dataclass(eq=False)
class Call:
    """What one request has got so far; it may take several questions to the server."""

    request: Request
    sampling: Sampling
    """The request's, always with a seed."""
    limit: int
    """Tokens to generate at most, without `choices`."""
    tree: Tree | None
    """Constrained decoding: what may follow."""
    begun: bool = False
    """The server had it: other weights would be a change under way."""
    aborted: bool = False
    """The caller wants no more of it."""
    cut: bool = False
    """New weights end it (`in_flight: abort`), if it has tokens; else it begins with them."""
    asked: asyncio.Task[Answer] | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    allowed: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """It ends with what it has."""
        return self.aborted or (self.cut and bool(self.tokens))

    @property
    def prompt(self) -> list[int]:
        return [*self.request.prompt_ids, *self.tokens]

    def question(self) -> tuple[Sampling, tuple[int, ...] | None]:
        """How the next tokens are drawn, and among which: with choices one token, whose place gives its seed."""
        if self.tree is None:
            return replace(self.sampling, max_tokens=self.limit - len(self.tokens)), None
        seed = random.Random(f"{self.sampling.seed}/{len(self.tokens)}").getrandbits(63)
        return replace(self.sampling, max_tokens=1, stop_ids=(), seed=seed), tuple(self.tree)

    def add_without_choice(self, version: int) -> bool:
        """Constrained decoding: append the tokens that have no alternative; whether that ended it."""
        while self.tree is not None and len(self.tree) == 1:
            (token,) = self.tree
            self._add([token], [0.0], [version])
        return self.tree == {}

    def add(self, answer: Answer) -> FinishReason | None:
        """Append what the server sampled; why the call is finished with it, if it is."""
        self._add(answer.token_ids, answer.logprobs, answer.versions)
        if self.tree is not None:
            return "stop" if self.tree == {} else None
        return None if answer.finish_reason == "abort" else answer.finish_reason

    def generation(self, reason: FinishReason) -> Generation:
        """What its caller gets."""
        allowed = tuple(self.allowed) if self.request.choices is not None else None
        return Generation(tuple(self.tokens), tuple(self.logprobs), tuple(self.versions), reason, allowed)

    def _add(self, tokens: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> None:
        self.tokens += tokens
        self.logprobs += logprobs
        self.versions += versions
        for token in tokens:
            if self.tree is not None:
                self.allowed.append(tuple(self.tree))
                self.tree = self.tree[token]


class Stopwatch:
    """Seconds that passed while it was running, and while somebody was served."""

    def __init__(self) -> None:
        self._started = self._since = time.monotonic()
        self._paused_s = self._busy_s = 0.0
        self._paused_at: float | None = None
        self._busy = False

    @property
    def running_s(self) -> float:
        """Seconds since the start, but for those between `pause` and `go_on`."""
        now = time.monotonic()
        pausing_s = 0.0 if self._paused_at is None else now - self._paused_at
        return now - self._started - self._paused_s - pausing_s

    def pause(self) -> None:
        if self._paused_at is None:
            self._paused_at = time.monotonic()

    def go_on(self) -> None:
        if self._paused_at is not None:
            self._paused_s += time.monotonic() - self._paused_at
            self._paused_at = None

    def serving(self, calls: int) -> None:
        """So many calls are under way from now on."""
        now = time.monotonic()
        if self._busy:
            self._busy_s += now - self._since
        self._since, self._busy = now, calls > 0

    def read(self) -> dict[str, float]:
        """`busy_s` and `idle_s`, which add up to all the time since the start."""
        self.serving(int(self._busy))
        return {"busy_s": self._busy_s, "idle_s": self._since - self._started - self._busy_s}
