"""Several engines as one: each with its own slots and weights, replaced when it breaks down.

A trajectory stays with the engine of its first request. Weights go to all engines while none of
them steps. An engine whose worker died is replaced before its next request, with the newest
published weights, as often as `restarts` allows in all; after that every request fails and says so.
What was under way in a broken engine fails with EngineError, which costs those episodes alone.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rocknroll.trainer.engines.base import Engine, EngineError, EnginesExhausted, Generation, InFlight, Request
from rocknroll.trainer.engines.cores import check_cores, share_of
from rocknroll.trainer.engines.weights_file import WeightsFile

SECONDS = ("busy_s", "idle_s")
"""Counters that are averaged over the engines, so that together they still are the time that passed."""


class Replica(Engine, Protocol):
    """An engine that a pool can look after."""

    @property
    def broken(self) -> str | None:
        """Why it is of no use any more; None while it works."""

    @property
    def bit_exact(self) -> bool:
        """Whether its results are a function of weights, prompt and seed alone, bit for bit."""

    def hold(self, cores: Sequence[int]) -> None:
        """Compute on these CPU cores alone; called before `ready`."""

    async def ready(self) -> None:
        """Come up; called once, before anything is asked.

        Raises:
            EngineError: it cannot.
        """


@dataclass
class _Seat:
    """A place of the pool and the engine that has it now."""

    index: int
    engine: Replica
    retired: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Counters of the engines that had it before."""
    replacement: asyncio.Task[None] | None = None


class EnginePool:
    """An `Engine` over `replicas` engines that `factory` makes.

    Args:
        factory: makes the engine of a seat, by its number, with the run's first weights; called in a thread when one
            is replaced.
        replicas: engines side by side.
        restarts: how many broken ones are replaced, in all.
        cores: CPU cores that the engines share; None: wherever the kernel puts them.

    Raises:
        RecipeError: this machine lacks some of the cores.
    """

    def __init__(
        self,
        factory: Callable[[int], Replica],
        *,
        replicas: int = 1,
        restarts: int = 3,
        cores: Sequence[int] | None = None,
    ) -> None:
        if replicas < 1 or restarts < 0:
            raise ValueError(f"a pool needs at least 1 engine and 0 restarts, not {replicas} and {restarts}")
        if cores is not None:
            check_cores(cores, "engine.cores")
        self._factory = factory
        self._restarts = restarts
        self._cores = cores
        self._restarted = 0
        self._given_up: str | None = None
        self._suspended = False
        self._published: tuple[Mapping[str, Any], int] | None = None
        self._homes: dict[str, _Seat] = {}
        """Trajectory id -> where it lives."""
        self._changing = asyncio.Lock()
        """Held while engines are replaced or told something that all of them must know."""
        self._seats = [_Seat(index, factory(index)) for index in range(replicas)]
        for seat in self._seats:
            self._hold(seat, seat.engine)

    @property
    def bit_exact(self) -> bool:
        """Whether the results of every engine are a function of weights, prompt and seed alone, bit for bit."""
        return all(seat.engine.bit_exact for seat in self._seats)

    async def ready(self) -> None:
        """Wait until every engine has come up.

        Raises:
            EngineError: one cannot.
        """
        try:
            async with asyncio.TaskGroup() as starting:
                for seat in self._seats:
                    starting.create_task(seat.engine.ready())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def generate(self, request: Request) -> Generation:
        if not 0 <= request.engine < len(self._seats):
            raise ValueError(f"request {request.id} is for engine {request.engine}, but there are {len(self._seats)}")
        seat = self._homes.setdefault(request.trajectory_id, self._seats[request.engine])
        engine = await self._serving(seat)
        return await engine.generate(request)

    async def abort(self, request_id: str) -> None:
        for seat in self._seats:
            await seat.engine.abort(request_id)

    async def release(self, trajectory_id: str) -> None:
        seat = self._homes.pop(trajectory_id, None)
        if seat is not None:
            await seat.engine.release(trajectory_id)

    async def suspend(self) -> None:
        async with self._changing:
            self._suspended = True
            await self._all(lambda engine: engine.suspend())

    async def resume(self) -> None:
        async with self._changing:
            self._suspended = False
            await self._all(lambda engine: engine.resume())

    async def update_weights(self, state: Mapping[str, Any], version: int, in_flight: InFlight = "recompute") -> None:
        """See `Engine`. No engine steps between the first one's update and the last one's.

        Raises:
            ValueError: names or shapes are not the model's; the weights stay as they were.
        """
        async with self._changing:
            if not self._suspended:
                await self._all(lambda engine: engine.suspend())
            try:
                await self._all(lambda engine: engine.update_weights(state, version, in_flight))
                if self._restarts:
                    self._published = (_lasting(state), version)
            finally:
                if not self._suspended:
                    await self._all(lambda engine: engine.resume())

    async def close(self) -> None:
        self._given_up = self._given_up or "the engine is closed"
        replacing = [seat.replacement for seat in self._seats if seat.replacement is not None]
        await asyncio.gather(*replacing, return_exceptions=True)
        await asyncio.gather(*(seat.engine.close() for seat in self._seats))
        if self._published is not None and isinstance(self._published[0], WeightsFile):
            self._published[0].path.unlink(missing_ok=True)

    def metrics(self) -> Mapping[str, float]:
        """The engines' counters, those of broken ones included, and `engine_restarts`."""
        total: defaultdict[str, float] = defaultdict(float)
        for seat in self._seats:
            for counts in (seat.retired, seat.engine.metrics()):
                for name, value in counts.items():
                    total[name] += value / len(self._seats) if name in SECONDS else value
        return {**total, "engine_restarts": float(self._restarted)}

    async def _all(self, call: Callable[[Replica], Awaitable[None]]) -> None:
        """Tell every engine; a broken one learns it when it is replaced."""
        outcomes = await asyncio.gather(*(call(seat.engine) for seat in self._seats), return_exceptions=True)
        for seat, outcome in zip(self._seats, outcomes, strict=True):
            lost = isinstance(outcome, EngineError) and seat.engine.broken is not None
            if isinstance(outcome, BaseException) and not lost:
                raise outcome

    async def _serving(self, seat: _Seat) -> Replica:
        """The engine of a seat, replaced first if it is broken."""
        while True:
            if self._given_up is not None:
                raise EnginesExhausted(self._given_up)
            if seat.engine.broken is None:
                return seat.engine
            if seat.replacement is None:
                seat.replacement = asyncio.create_task(self._replace(seat))
            # A caller that is cancelled must not take away the engine that others wait for, too.
            await asyncio.shield(seat.replacement)

    async def _replace(self, seat: _Seat) -> None:
        try:
            async with self._changing:
                why = seat.engine.broken
                if self._restarted >= self._restarts:
                    self._given_up = (
                        f"an engine broke down ({why}), and the {self._restarts} restarts that `engine.restarts` allows"
                        " are used up"
                    )
                    return
                self._restarted += 1
                await self._renew(seat)
        except Exception as error:
            raise EngineError(f"a broken engine could not be replaced: {type(error).__name__}: {error}") from error
        finally:
            seat.replacement = None

    async def _renew(self, seat: _Seat) -> None:
        """Another engine for a seat. It gets requests only once it has the newest weights."""
        engine = await asyncio.to_thread(self._factory, seat.index)
        self._hold(seat, engine)
        try:
            await engine.ready()
            if self._suspended:
                await engine.suspend()
            if self._published is not None:
                state, version = self._published
                await engine.update_weights(state, version)
        except BaseException:
            await engine.close()
            raise
        broken, seat.engine = seat.engine, engine
        await broken.close()
        for name, value in broken.metrics().items():
            seat.retired[name] += value

    def _hold(self, seat: _Seat, engine: Replica) -> None:
        if self._cores is not None:
            engine.hold(share_of(self._cores, seat.index, len(self._seats)))


def _lasting(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """A copy that stays as it is when the learner goes on; of a file, another name for it."""
    if isinstance(state, WeightsFile):
        return state.kept_as(state.path.with_suffix(".published"))
    return {name: value.detach().clone() for name, value in state.items()}
