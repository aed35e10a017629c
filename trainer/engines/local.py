"""The embedded engine: continuous batching over KV slots, in one thread of this process.

A trajectory keeps its slot between turns, so a turn costs its new tokens only. Weights are swapped
between two steps; what the old ones computed is computed again before the next token that depends
on it. How steps are put together stands in `batcher.py`; this is the thread around it.

One worker thread owns all state. Other threads only put calls into its inbox; results travel back
through the event loop of the caller.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from rocknroll.trainer.engines.base import EngineError, Generation, InFlight, Request
from rocknroll.trainer.engines.batcher import Batcher
from rocknroll.trainer.engines.choices import prefix_tree
from rocknroll.trainer.engines.cores import hold
from rocknroll.trainer.engines.forward import make_forward
from rocknroll.trainer.engines.probe import is_exact
from rocknroll.trainer.engines.requests import Reply, Waiting


class LocalEngine:
    """Serves a Hugging Face causal LM from KV slots; see `Engine` for the contract.

    Args:
        model: copied, so that a learner may go on training the original.
        slots: contexts held, and the most requests that run at once.
        max_length: most tokens of a context, generated ones included.
        version: policy version of the model's weights.
        threads: CPU threads of a forward pass. One is fastest for small models on few cores.
        seed: of the requests that bring none.
        bit_exact: compute at shapes that make results the same bit for bit whatever else is computed; see the
            property of this name, which says whether that holds here.
    """

    def __init__(
        self,
        model: Any,
        *,
        slots: int,
        max_length: int,
        version: int = 0,
        threads: int = 1,
        seed: int = 0,
        bit_exact: bool = False,
    ) -> None:
        if slots < 1 or max_length < 2:
            raise ValueError(f"an engine needs at least 1 slot and a length of 2, not {slots} and {max_length}")
        forward = make_forward(model)
        self._vocabulary: int = model.get_input_embeddings().num_embeddings
        self._exact = bit_exact and threads == 1 and is_exact(forward, self._vocabulary, max_length)
        self._batcher = Batcher(forward, slots=slots, max_length=max_length, version=version, exact=bit_exact)
        self._max_length = max_length
        self._random = random.Random(seed)
        self._suspended = False
        self._closed = False
        self._broken: str | None = None
        self._busy_s = self._idle_s = 0.0
        self._idle_since: float | None = None
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._work, args=(threads,), name="engine", daemon=True)
        self._thread.start()

    @property
    def bit_exact(self) -> bool:
        """Whether tokens and log-probabilities are a function of weights, prompt and seed alone, bit for bit.

        It was asked for, one thread computes, and a trial on this machine with this model showed it.
        """
        return self._exact

    @property
    def broken(self) -> str | None:
        """Why the worker thread died, if it did without having been closed: this engine is of no use any more."""
        return self._broken

    @property
    def thread_id(self) -> int:
        """The worker thread's id in the kernel."""
        return self._thread.native_id or 0

    def hold(self, cores: Sequence[int]) -> None:
        """Keep the worker thread to some CPU cores."""
        hold(self.thread_id, cores)

    async def ready(self) -> None:
        """Nothing to wait for: requests queue from the start."""

    async def generate(self, request: Request) -> Generation:
        asked = self._check(request)
        self._post(lambda: self._batcher.add(asked))
        try:
            generation: Generation = await asked.reply.future
        except asyncio.CancelledError:
            await self.abort(request.id)
            raise
        return generation

    async def abort(self, request_id: str) -> None:
        with suppress(EngineError):  # a closed engine has already ended all requests
            self._post(lambda: self._batcher.abort(request_id))

    async def release(self, trajectory_id: str) -> None:
        with suppress(EngineError):  # and holds no slots
            self._post(lambda: self._batcher.release(trajectory_id))

    async def suspend(self) -> None:
        await self._ask(lambda: setattr(self, "_suspended", True))

    async def resume(self) -> None:
        await self._ask(lambda: setattr(self, "_suspended", False))

    async def update_weights(self, state: Mapping[str, Any], version: int, in_flight: InFlight = "recompute") -> None:
        """See `Engine`. The state must not change until this returns.

        Raises:
            ValueError: names or shapes are not the model's; the weights stay as they were.
        """
        await self._ask(lambda: self._batcher.update(state, version, in_flight))

    async def close(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def metrics(self) -> Mapping[str, float]:
        idle_since = self._idle_since
        waiting_s = 0.0 if idle_since is None else time.perf_counter() - idle_since
        names = ("tokens_generated", "tokens_prefilled", "tokens_reused", "steps")
        counts = {name: float(self._batcher.counts[name]) for name in names}
        return {**counts, "busy_s": self._busy_s, "idle_s": self._idle_s + waiting_s}

    def _check(self, request: Request) -> Waiting:
        """The request as the worker wants it; everything that can be wrong with it is said here."""
        prompt, sampling = list(request.prompt_ids), request.sampling
        tree = None if request.choices is None else prefix_tree(request.choices)
        longest = 1 if request.choices is None else max(len(choice) for choice in request.choices)
        if not prompt:
            raise ValueError(f"request {request.id}: the prompt is empty")
        if len(prompt) + longest > self._max_length:
            raise ValueError(
                f"request {request.id}: {len(prompt)} prompt tokens and an action do not fit into {self._max_length}"
            )
        if not 0 <= min(prompt) <= max(prompt) < self._vocabulary:
            raise ValueError(f"request {request.id}: a token id is outside the vocabulary of {self._vocabulary}")
        if sampling.max_tokens < 1 or sampling.temperature < 0 or sampling.top_k < 0 or not 0 < sampling.top_p <= 1:
            raise ValueError(f"request {request.id}: impossible sampling settings {sampling}")
        limit = min(sampling.max_tokens, self._max_length - len(prompt))
        seed = self._random.getrandbits(63) if sampling.seed is None else sampling.seed
        return Waiting(request, prompt, Reply(), random.Random(seed), limit, tree)

    def _post(self, call: Callable[[], None]) -> None:
        with self._wake:
            if self._closed:
                raise EngineError(self._why_closed())
            self._inbox.append(call)
            self._wake.notify()

    async def _ask(self, call: Callable[[], None]) -> None:
        """Have the worker do something between two steps, and wait until it is done."""
        reply = Reply()

        def do() -> None:
            try:
                call()
            except Exception as error:
                reply.fail(error)
            else:
                reply.give(None)

        self._post(do)
        await reply.future

    def _why_closed(self) -> str:
        return "the engine is closed" if self._broken is None else f"the engine broke down: {self._broken}"

    # What follows runs in the worker thread.

    def _work(self, threads: int) -> None:
        torch.set_num_threads(threads)
        try:
            with torch.inference_mode():
                self._serve()
        except Exception as error:
            self._broken = f"{type(error).__name__}: {error}"
            raise
        finally:
            with self._wake:
                self._closed = True
            # Nobody can post any more; requests that came in last are to fail with the others.
            while self._inbox:
                with suppress(Exception):
                    self._inbox.popleft()()
            self._batcher.fail_all(self._why_closed())

    def _serve(self) -> None:
        """Alternate between calls and steps until the engine is closed."""
        while not self._closed:
            self._wait_for_work()
            while self._inbox:
                self._inbox.popleft()()
            self._batcher.admit()
            if self._batcher.running and not self._suspended:
                start = time.perf_counter()
                self._batcher.step()
                self._busy_s += time.perf_counter() - start

    def _wait_for_work(self) -> None:
        """Sleep while there is nothing to compute and nothing in the inbox."""
        with self._wake:
            nothing_to_do = self._suspended or self._batcher.idle
            if nothing_to_do and not self._inbox and not self._closed:
                self._idle_since = time.perf_counter()
                self._wake.wait_for(lambda: self._inbox or self._closed)
                self._idle_s += time.perf_counter() - self._idle_since
                self._idle_since = None
