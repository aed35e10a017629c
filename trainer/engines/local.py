"""The embedded engine: continuous batching over KV slots, in one thread of this process.

Every step takes all requests that run, gathers their new tokens (a whole prompt, the observation of
a new turn, or the token sampled last) into one ragged forward pass, and samples for those that are
complete. Requests join and leave between any two steps. A trajectory keeps its slot between turns,
so a turn costs its new tokens only. Weights are swapped between two steps; cached contexts are then
computed again before the next token that depends on them, also for requests under way.

One worker thread owns all state. Other threads only put calls into its inbox; results travel back
through the event loop of the caller.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from rocknroll.trainer.engines.base import EngineError, FinishReason, Generation, Request
from rocknroll.trainer.engines.choices import Tree, prefix_tree
from rocknroll.trainer.engines.forward import make_forward
from rocknroll.trainer.engines.ragged import RaggedBatch, Row
from rocknroll.trainer.engines.sampler import Draw, Drawn, draw_tokens
from rocknroll.trainer.engines.slots import MIN_SHARED, Slot, SlotTable

PREFILL_TOKENS = 512
"""Context tokens computed in one step at most, so that long prompts do not hold up requests that decode."""
PREFILL_CHUNK = 256
"""Context tokens of one request in one step at most, so that a long prompt leaves room for short ones."""
WORTH_SHARING = 24
"""Fewer missing tokens are computed without looking whether another slot has them: most turns are that short."""


@dataclass(eq=False)
class _Run:
    """A request under way."""

    request: Request
    prompt: list[int]
    reply: _Reply
    random: random.Random
    limit: int
    """Tokens to generate at most."""
    tree: Tree | None
    """Constrained decoding: what may follow."""
    slot: Slot | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    allowed: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, drawn: Drawn, version: int) -> FinishReason | None:
        """Append a token; why the request is finished with it, if it is."""
        assert self.slot is not None
        self.slot.tokens.append(drawn.token)
        self.tokens.append(drawn.token)
        self.logprobs.append(drawn.logprob)
        self.versions.append(version)
        if self.tree is not None:
            assert drawn.allowed is not None
            self.allowed.append(drawn.allowed)
            self.tree = self.tree[drawn.token]
            return None if self.tree else "stop"
        if drawn.token in self.request.sampling.stop_ids:
            return "stop"
        return "length" if len(self.tokens) >= self.limit else None

    def result(self, reason: FinishReason) -> Generation:
        allowed = tuple(self.allowed) if self.request.choices is not None else None
        return Generation(tuple(self.tokens), tuple(self.logprobs), tuple(self.versions), reason, allowed)


class _Reply:
    """A future of the caller's event loop that the worker thread can fulfil."""

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


class LocalEngine:
    """Serves a Hugging Face causal LM from KV slots; see `Engine` for the contract.

    Args:
        model: copied, so that a learner may go on training the original.
        slots: contexts held, and the most requests that run at once.
        max_length: most tokens of a context, generated ones included.
        version: policy version of the model's weights.
        threads: CPU threads of a forward pass. One is fastest for small models on few cores.
        seed: of the requests that bring none.
    """

    def __init__(
        self, model: Any, *, slots: int, max_length: int, version: int = 0, threads: int = 1, seed: int = 0
    ) -> None:
        if slots < 1 or max_length < 2:
            raise ValueError(f"an engine needs at least 1 slot and a length of 2, not {slots} and {max_length}")
        self._forward = make_forward(model)
        self._store = self._forward.new_store(slots, max_length)
        self._vocabulary: int = model.get_input_embeddings().num_embeddings
        self._table = SlotTable(slots)
        self._max_length = max_length
        self._version = version
        self._random = random.Random(seed)
        self._waiting: deque[_Run] = deque()
        self._running: list[_Run] = []
        self._suspended = False
        self._closed = False
        self._why_closed = "the engine is closed"
        self._counts: Counter[str] = Counter()
        self._busy_s = self._idle_s = 0.0
        self._idle_since: float | None = None
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._work, args=(threads,), name="engine", daemon=True)
        self._thread.start()

    async def generate(self, request: Request) -> Generation:
        run = self._check(request)
        self._post(lambda: self._waiting.append(run))
        try:
            generation: Generation = await run.reply.future
        except asyncio.CancelledError:
            await self.abort(request.id)
            raise
        return generation

    async def abort(self, request_id: str) -> None:
        with suppress(EngineError):  # a closed engine has already ended all requests
            self._post(lambda: self._abort(request_id))

    async def release(self, trajectory_id: str) -> None:
        with suppress(EngineError):  # and holds no slots
            self._post(lambda: self._table.release(trajectory_id))

    async def suspend(self) -> None:
        await self._ask(lambda: setattr(self, "_suspended", True))

    async def resume(self) -> None:
        await self._ask(lambda: setattr(self, "_suspended", False))

    async def update_weights(self, state: Mapping[str, Any], version: int) -> None:
        """See `Engine`. The state must not change until this returns.

        Raises:
            ValueError: names or shapes are not the model's; the weights stay as they were.
        """
        await self._ask(lambda: self._load(state, version))

    async def close(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def metrics(self) -> Mapping[str, float]:
        idle_since = self._idle_since
        waiting_s = 0.0 if idle_since is None else time.perf_counter() - idle_since
        names = ("tokens_generated", "tokens_prefilled", "tokens_reused", "steps")
        counts = {name: float(self._counts[name]) for name in names}
        return {**counts, "busy_s": self._busy_s, "idle_s": self._idle_s + waiting_s}

    def _check(self, request: Request) -> _Run:
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
        return _Run(request, prompt, _Reply(), random.Random(seed), limit, tree)

    def _post(self, call: Callable[[], None]) -> None:
        with self._wake:
            if self._closed:
                raise EngineError(self._why_closed)
            self._inbox.append(call)
            self._wake.notify()

    async def _ask(self, call: Callable[[], None]) -> None:
        """Have the worker do something between two steps, and wait until it is done."""
        reply = _Reply()

        def do() -> None:
            try:
                call()
            except Exception as error:
                reply.fail(error)
            else:
                reply.give(None)

        self._post(do)
        await reply.future

    # What follows runs in the worker thread.

    def _work(self, threads: int) -> None:
        torch.set_num_threads(threads)
        try:
            with torch.inference_mode():
                self._serve()
        except Exception as error:
            self._why_closed = f"the engine broke down: {type(error).__name__}: {error}"
            raise
        finally:
            with self._wake:
                self._closed = True
            # Nobody can post any more; requests that came in last are to fail with the others.
            for call in self._inbox:
                call()
            for run in (*self._waiting, *self._running):
                run.reply.fail(EngineError(self._why_closed))

    def _serve(self) -> None:
        """Alternate between calls and steps until the engine is closed."""
        while not self._closed:
            for call in self._next_calls():
                call()
            self._admit()
            if self._running and not self._suspended:
                self._timed_step()

    def _next_calls(self) -> list[Callable[[], None]]:
        """Calls that arrived; waits for one when there is nothing to compute."""
        with self._wake:
            nothing_to_do = self._suspended or not (self._running or self._waiting)
            if nothing_to_do and not self._inbox and not self._closed:
                self._idle_since = time.perf_counter()
                self._wake.wait_for(lambda: self._inbox or self._closed)
                self._idle_s += time.perf_counter() - self._idle_since
                self._idle_since = None
            calls = list(self._inbox)
            self._inbox.clear()
            return calls

    def _load(self, state: Mapping[str, Any], version: int) -> None:
        self._forward.load(state)
        self._version = version
        self._table.forget_contexts()

    def _admit(self) -> None:
        """Give slots to waiting requests in their order, after those whose context is still in one.

        A request whose trajectory is still generating another stays behind.
        """
        still: deque[_Run] = deque()
        for run in sorted(self._waiting, key=lambda run: not self._table.owns(run.request.trajectory_id)):
            run.slot = self._table.claim(run.request.trajectory_id)
            if run.slot is None:
                still.append(run)
                continue
            self._counts["tokens_reused"] += run.slot.take(run.prompt)
            self._running.append(run)
        self._waiting = still

    def _abort(self, request_id: str) -> None:
        for run in self._running:
            if run.request.id == request_id:
                self._finish(run, "abort")
                return
        for run in self._waiting:
            if run.request.id == request_id:
                self._waiting.remove(run)
                run.reply.give(run.result("abort"))
                return

    def _finish(self, run: _Run, reason: FinishReason) -> None:
        self._running.remove(run)
        self._table.settle(run.request.trajectory_id)
        run.reply.give(run.result(reason))

    def _timed_step(self) -> None:
        start = time.perf_counter()
        try:
            self._step()
        except Exception as error:
            # Out of memory, say. The requests fail; what the store holds after half a step is not trusted.
            self._table.forget_contexts()
            for run in self._running:
                self._table.settle(run.request.trajectory_id)
                run.reply.fail(EngineError(f"a generation step failed: {type(error).__name__}: {error}"))
            self._running.clear()
        self._counts["steps"] += 1
        self._busy_s += time.perf_counter() - start

    def _step(self) -> None:
        for run in list(self._running):
            self._advance_without_choice(run)
        rows, complete = self._gather()
        if not rows:
            return
        batch = RaggedBatch(rows, self._store)
        place = {row.slot: index for index, row in enumerate(batch.rows)}
        last = batch.last[[place[run.slot.index] for run in complete if run.slot is not None]]
        logits = self._forward.logits(batch, last)
        for row in rows:
            self._table.slots[row.slot].cached = row.end
        if complete:
            drawn = draw_tokens(logits, [_draw(run) for run in complete])
            for run, token in zip(complete, drawn, strict=True):
                self._add(run, token)

    def _advance_without_choice(self, run: _Run) -> None:
        """Constrained decoding: tokens that have no alternative need no forward pass."""
        while run.tree is not None and len(run.tree) == 1 and run in self._running:
            (token,) = run.tree
            self._add(run, Drawn(token, 0.0, (token,)))

    def _add(self, run: _Run, drawn: Drawn) -> None:
        if drawn.logprob != drawn.logprob or drawn.logprob == -torch.inf:
            self._running.remove(run)
            self._table.settle(run.request.trajectory_id)
            run.reply.fail(EngineError(f"the weights of version {self._version} give logits that are not numbers"))
            return
        self._counts["tokens_generated"] += 1
        reason = run.add(drawn, self._version)
        if reason is not None:
            self._finish(run, reason)

    def _gather(self) -> tuple[list[Row], list[_Run]]:
        """Rows of the next forward pass, and the requests whose context is then complete."""
        rows: list[Row] = []
        complete: list[_Run] = []
        budget = PREFILL_TOKENS
        filling: list[Slot] = []
        for run in self._running:
            slot = run.slot
            assert slot is not None
            count = 1
            if slot.pending > 1:
                if budget == 0 or not self._share(slot, filling):
                    continue
                filling.append(slot)
                count = min(slot.pending, budget, PREFILL_CHUNK)
                budget -= count
                self._counts["tokens_prefilled"] += count
            rows.append(Row(slot.index, slot.cached, slot.tokens[slot.cached : slot.cached + count]))
            if count == slot.pending:
                complete.append(run)
        return rows, complete

    def _share(self, slot: Slot, filling: list[Slot]) -> bool:
        """Copy what another slot has of this context; false when it pays to wait for one that is being filled."""
        if slot.pending < WORTH_SHARING:
            return True
        donor = self._table.donor(slot)
        known = slot.cached if donor is None else donor[1]
        wanted = known + MIN_SHARED
        if len(slot.tokens) > wanted and any(other.tokens[:wanted] == slot.tokens[:wanted] for other in filling):
            return False
        if donor is not None:
            self._store.copy(donor[0].index, slot.index, known)
            self._counts["tokens_reused"] += known - slot.cached
            slot.cached = known
        return True


def _draw(run: _Run) -> Draw:
    sampling = run.request.sampling
    allowed = None if run.tree is None else tuple(run.tree)
    return Draw(sampling.temperature, sampling.top_k, sampling.top_p, run.random.random(), allowed)
