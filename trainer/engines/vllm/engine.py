"""An engine over one vLLM server: token ids in, token ids with log-probabilities and versions out, by HTTP.

vLLM batches, caches prefixes over turns, and says of every token which weights sampled it. This class keeps the
rest of the contract: who may ask while weights change, what becomes of requests under way, constrained decoding,
and that a server that died, hangs or computes something else is told from one that works.
All state belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from rocknroll.trainer.engines.base import EngineError, Generation, InFlight, Request
from rocknroll.trainer.engines.choices import prefix_tree
from rocknroll.trainer.engines.vllm.calls import Call, Stopwatch
from rocknroll.trainer.engines.vllm.client import Answer, Client
from rocknroll.trainer.engines.vllm.served import ServedPolicy
from rocknroll.trainer.engines.vllm.server import Started

COLDEST = 0.01
"""vLLM samples lower temperatures at this one."""
ABORT_AGAIN_S = 0.2
"""An abort may overtake its request on the way to the server, so it is repeated until the request ended."""
HEALTH_EVERY_S = 0.25
DYING_S = 5.0
"""A server that broke off may take so long to be gone."""

Launch = Callable[[Sequence[int] | None], Started]
"""Starts a server, held to some CPU cores."""


@dataclass(frozen=True)
class Limits:
    """How long things may take, in seconds."""

    start: float
    generation: float
    update: float


class VLLMEngine:
    """Serves requests from one vLLM server; see `Engine` for the contract.

    Args:
        server: starts it, or the address of one that runs already, which gets the first weights like any others.
        policy: what it must serve.
        max_length: most tokens of a context, generated ones included.
        version: policy version of the first weights.
        seed: of the requests that bring none.
    """

    def __init__(
        self,
        server: Launch | str,
        policy: ServedPolicy,
        *,
        max_length: int,
        limits: Limits,
        version: int = 0,
        seed: int = 0,
    ) -> None:
        self._wanted = server
        self._policy = policy
        self._max_length = max_length
        self._limits = limits
        self._version = version
        self._random = random.Random(seed)
        self._cores: Sequence[int] | None = None
        self._server: Started | None = None
        self._client: Client | None = None
        self._calls: dict[str, Call] = {}
        self._suspended = self._draining = self._closed = False
        self._unproven = False
        """New weights were not probed yet."""
        self._broken: str | None = None
        self._news = asyncio.Event()
        """Set, and replaced, whenever somebody who waits should look again."""
        self._counts: Counter[str] = Counter()
        self._watch = Stopwatch()

    @property
    def broken(self) -> str | None:
        """Why the server is of no use any more; None while it works."""
        if self._broken is None and not self._closed and self._server is not None and self._server.ended:
            self._break("the vLLM server ended")
        return self._broken

    @property
    def bit_exact(self) -> bool:
        """Never: vLLM's results depend on what else is in a batch."""
        return False

    def hold(self, cores: Sequence[int]) -> None:
        """Keep the server to some CPU cores; before it is started."""
        self._cores = cores

    async def ready(self) -> None:
        """Start the server, or find the one that runs, and see that it is what the run needs.

        Raises:
            EngineError: it does not come up in time, is of another version, or serves another policy or tokenizer.
        """
        if isinstance(self._wanted, str):
            self._client = Client(self._wanted)
        else:
            self._server = await asyncio.to_thread(self._wanted, self._cores)
            self._client = Client(self._server.address)
            await self._come_up(self._server, self._client)
        client = self._client
        self._max_length = min(self._max_length, await self._policy.examine(client))
        await client.begin_transfer()
        if self._server is None:
            await client.pause("abort", clear_cache=True, timeout_s=self._limits.update)
            await client.load(self._policy.files, self._version, self._limits.update)
            await client.resume(self._limits.update)
        else:
            await client.call_version(self._version)
        await self._policy.probe(client, self._version)

    async def generate(self, request: Request) -> Generation:
        call = self._check(request)
        self._calls[request.id] = call
        self._watch.serving(len(self._calls))
        try:
            return await self._play(call)
        finally:
            if call.asked is not None:
                call.asked.cancel()  # which ends it on the server, too
            del self._calls[request.id]
            self._watch.serving(len(self._calls))
            call.done.set()

    async def abort(self, request_id: str) -> None:
        call = self._calls.get(request_id)
        if call is None:
            return
        call.aborted = True
        self._tell()
        while not call.done.is_set():
            if call.asked is not None and not call.asked.done():
                with suppress(EngineError):  # its request hears of that itself
                    await self._connected().abort(request_id)
            with suppress(TimeoutError):
                await asyncio.wait_for(call.done.wait(), ABORT_AGAIN_S)

    async def release(self, trajectory_id: str) -> None:
        """Nothing to do: the prefix cache forgets what was not used for longest."""

    async def suspend(self) -> None:
        await self._command(self._connected().pause("keep", clear_cache=False, timeout_s=self._limits.update))
        self._suspended = True
        self._watch.pause()

    async def resume(self) -> None:
        client = self._connected()
        await self._command(client.resume(self._limits.update))
        self._suspended = False
        self._watch.go_on()
        self._tell()
        if self._unproven:
            self._unproven = False
            await self._command(self._policy.probe(client, self._version))

    async def update_weights(self, state: Mapping[str, Any], version: int, in_flight: InFlight = "recompute") -> None:
        """See `Engine`. The server reads a `WeightsFile` itself; any other state is written into a file for it.

        With `keep`, what is under way is finished before anything changes, though the engine be suspended. The next
        `resume` compares what the server computes with the policy's own.

        Raises:
            ValueError: names or shapes are not the model's; the weights stay as they were.
            EngineError: the server failed, and is of no use any more.
        """
        client, suspended = self._connected(), self._suspended
        with self._policy.placed(state) as files:
            if not suspended:
                await self.suspend()
            if in_flight == "keep":
                await self._drain()
            if in_flight == "abort":
                for call in self._calls.values():
                    call.cut = call.begun
            mode: Any = "abort" if in_flight == "abort" else "keep"
            await self._command(client.pause(mode, clear_cache=True, timeout_s=self._limits.update))
            await self._command(client.load(files, version, self._limits.update))
            await self._policy.follow(state, version)
        self._version, self._unproven = version, True
        self._tell()
        if not suspended:
            await self.resume()

    async def close(self) -> None:
        self._closed = True
        self._give_up_calls()
        if self._client is not None:
            await self._client.close()
        if self._server is not None:
            await asyncio.to_thread(self._server.stop)

    def metrics(self) -> Mapping[str, float]:
        """See `Engine`. `busy_s` is the time with requests under way; `steps` are questions to the server."""
        names = ("tokens_generated", "tokens_prefilled", "tokens_reused", "steps")
        return {name: float(self._counts[name]) for name in names} | self._watch.read()

    async def _come_up(self, server: Started, client: Client) -> None:
        try:
            async with asyncio.timeout(self._limits.start):
                while not await client.healthy():
                    if server.ended:
                        raise EngineError(f"the vLLM server did not start; {server.last_words()}")
                    await asyncio.sleep(HEALTH_EVERY_S)
        except TimeoutError:
            raise EngineError(
                f"the vLLM server did not answer in {self._limits.start:g} s (`engine.vllm.start_timeout_s`);"
                f" {server.last_words()}"
            ) from None

    def _check(self, request: Request) -> Call:
        """The request as it will be asked; everything that can be wrong with it is said here."""
        prompt, sampling = request.prompt_ids, request.sampling
        tree = None if request.choices is None else prefix_tree(request.choices)
        longest = 1 if request.choices is None else max(map(len, request.choices))
        if request.id in self._calls:
            raise ValueError(f"request {request.id} is under way already")
        if not prompt:
            raise ValueError(f"request {request.id}: the prompt is empty")
        if len(prompt) + longest > self._max_length:
            raise ValueError(
                f"request {request.id}: {len(prompt)} prompt tokens and an action do not fit into {self._max_length}"
            )
        if not 0 <= min(prompt) <= max(prompt) < self._policy.vocabulary:
            raise ValueError(f"request {request.id}: a token id is outside the vocabulary of {self._policy.vocabulary}")
        if sampling.max_tokens < 1 or sampling.top_k < 0 or not 0 < sampling.top_p <= 1:
            raise ValueError(f"request {request.id}: impossible sampling settings {sampling}")
        if sampling.temperature < 0 or 0 < sampling.temperature < COLDEST:
            raise ValueError(
                f"request {request.id}: vLLM samples at temperature 0 or at {COLDEST} and more, not"
                f" {sampling.temperature}"
            )
        seed = self._random.getrandbits(63) if sampling.seed is None else sampling.seed
        limit = min(sampling.max_tokens, self._max_length - len(prompt))
        return Call(request, replace(sampling, seed=seed), limit, tree)

    async def _play(self, call: Call) -> Generation:
        """Ask until the call is over; once, unless choices or new weights cut it into pieces."""
        while True:
            while not (call.over or self._may_ask(call)):
                await self._news.wait()
            if call.over:
                return call.generation("abort")
            call.cut = False
            if call.add_without_choice(self._version):
                return call.generation("stop")
            answer = await self._ask(call)
            if call.cut and call.tokens:  # what came may be of the new weights already
                return call.generation("abort")
            reason = call.add(answer)
            if reason is not None:
                return call.generation(reason)
            if answer.finish_reason == "abort" and not (call.over or call.cut):
                if call.tokens:
                    return call.generation("abort")
                raise EngineError(f"the vLLM server ended request {call.request.id}, which nobody asked it to")

    def _may_ask(self, call: Call) -> bool:
        if self._closed or self.broken is not None:
            raise EngineError(self._why_ended())
        return not self._suspended or (self._draining and call.begun)

    async def _ask(self, call: Call) -> Answer:
        """One question to the server.

        Raises:
            EngineError: there will be no answer.
        """
        sampling, allowed = call.question()
        call.begun = True
        began_s = self._watch.running_s
        call.asked = asyncio.create_task(self._connected().generate(call.request.id, call.prompt, sampling, allowed))
        self._counts["steps"] += 1
        while not call.asked.done():
            left_s = self._limits.generation - (self._watch.running_s - began_s)
            if left_s <= 0:
                self._break(
                    f"request {call.request.id} had no answer in {self._limits.generation:g} s"
                    " (`engine.vllm.generation_timeout_s`), so the vLLM server counts as hung"
                )
            await asyncio.wait({call.asked}, timeout=max(left_s, HEALTH_EVERY_S))
        if call.asked.cancelled():
            raise EngineError(self._why_ended())
        failure = call.asked.exception()
        if failure is not None:
            await self._judge(failure)
            raise EngineError(f"request {call.request.id} failed: {failure}") from failure
        answer = call.asked.result()
        self._counts["tokens_generated"] += len(answer.token_ids)
        self._counts["tokens_reused"] += answer.cached_tokens
        self._counts["tokens_prefilled"] += answer.prompt_tokens - answer.cached_tokens
        return answer

    async def _drain(self) -> None:
        """Let what is under way come to its end by the weights it began with, while nothing new begins."""
        begun = [call for call in self._calls.values() if call.begun]
        if not begun:
            return
        client = self._connected()
        await self._command(client.resume(self._limits.update))
        self._draining = True
        self._watch.go_on()
        self._tell()
        try:
            for call in begun:
                await call.done.wait()
        finally:
            self._draining = False
            self._watch.pause()

    async def _command(self, command: Awaitable[None]) -> None:
        """Do something to the server that it must be able to do.

        Raises:
            EngineError: it was not, and the engine is broken.
        """
        try:
            await command
        except EngineError as error:
            self._break(str(error))
            raise

    async def _judge(self, failure: BaseException) -> None:
        """After a request failed: is it the server? One that breaks off may take a moment to be gone."""
        client, deadline_s = self._connected(), self._watch.running_s + DYING_S
        while self.broken is None and self._watch.running_s < deadline_s:
            if await client.healthy():
                return
            await asyncio.sleep(HEALTH_EVERY_S)
        self._break(str(failure))

    def _connected(self) -> Client:
        if self._closed or self.broken is not None:
            raise EngineError(self._why_ended())
        if self._client is None:
            raise EngineError("the engine has not started yet")
        return self._client

    def _break(self, why: str) -> None:
        if self._broken is None and not self._closed:
            self._broken = why if self._server is None else f"{why}; {self._server.last_words()}"
            self._give_up_calls()

    def _give_up_calls(self) -> None:
        for call in self._calls.values():
            if call.asked is not None:
                call.asked.cancel()
        self._tell()

    def _why_ended(self) -> str:
        return "the engine is closed" if self._broken is None else f"the engine broke down: {self._broken}"

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
