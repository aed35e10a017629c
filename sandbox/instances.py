"""The instances of one fleet: started, probed, listened to and buried in the background.

What happens is reported to the pool, which judges it; reports name the generation, so that those of an
instance that was given up meanwhile are ignored there. Nothing here decides.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from rocknroll.sandbox.channel import Header
from rocknroll.sandbox.errors import EnvError, RuntimeUnavailable, SandboxError, SandboxLost, SpecInvalid
from rocknroll.sandbox.live import Ears, Live, bring_up, take_over
from rocknroll.sandbox.pool import Pool
from rocknroll.sandbox.runtimes.base import Runtime
from rocknroll.sandbox.spec import SandboxSpec
from rocknroll.sandbox.store import SandboxRow

ERROR_TEXT_CHARS = 4_000
STARTS_KEPT = 256


class Instances:
    """`changed` is called whenever the pool has heard something new."""

    def __init__(self, runtime: Runtime, spec: SandboxSpec, pool: Pool, changed: Callable[[], None]) -> None:
        self._runtime, self._spec, self._pool, self._changed = runtime, spec, pool, changed
        self._live: dict[str, Live] = {}
        self._starts: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.start_s = 0.0
        """Seconds that all successful starts took together."""
        self.started_s: deque[float] = deque(maxlen=STARTS_KEPT)
        """Seconds that each of the newest took."""

    def get(self, sandbox_id: str) -> Live | None:
        """What exists of a sandbox now."""
        return self._live.get(sandbox_id)

    def start(self, sandbox_id: str, generation: int, floor: int) -> None:
        """Bring one up in the background."""
        task = asyncio.create_task(self._start(sandbox_id, generation, floor))
        self._starts[sandbox_id, generation] = task
        task.add_done_callback(lambda done: self._starts.pop((sandbox_id, generation), None))

    def discard(self, sandbox_id: str, generation: int, lost: bool) -> None:
        """Kill this one, or end its start; one that was `lost` is asked why first."""
        start = self._starts.get((sandbox_id, generation))
        if start is not None and start is not asyncio.current_task():
            start.cancel()
        live = self._live.get(sandbox_id)
        if live is not None and live.generation == generation:
            del self._live[sandbox_id]
            live.channel.close()
            self._spawn(self._bury(sandbox_id, live, lost))

    def probe(self, sandbox_id: str, generation: int) -> None:
        """Ping one in the background."""
        self._spawn(self._probe(sandbox_id, generation))

    async def take_over(self, row: SandboxRow) -> Live | None:
        """Find the instance that an earlier manager started; the caller tells the pool, and then calls `listen`.

        Raises:
            RuntimeUnavailable: the runtime cannot tell.
        """
        live = await take_over(self._runtime, self._spec, row, self._ears(row.id, row.generation))
        if live is not None:
            self._live[row.id] = live
        return live

    def listen(self, sandbox_id: str) -> None:
        """From here on the end of its process is reported; at once, if it has ended already."""
        live = self._live[sandbox_id]
        live.instance.on_exit(lambda why: self._lost(sandbox_id, live.generation, why))

    async def settled(self) -> None:
        """Return once everything that was begun has ended."""
        while self._starts or self._tasks:
            await asyncio.gather(*self._starts.values(), *self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, sandbox_id: str, generation: int, floor: int) -> None:
        began_s = time.monotonic()
        ears = self._ears(sandbox_id, generation)
        try:
            live = await bring_up(self._runtime, self._spec, sandbox_id, generation, floor, ears)
        except SandboxError as error:
            self._failed(sandbox_id, generation, error)
        else:
            self._live[sandbox_id] = live
            if self._pool.started(sandbox_id, generation, time.monotonic()):
                self.started_s.append(time.monotonic() - began_s)
                self.start_s += self.started_s[-1]
                self.listen(sandbox_id)
            else:
                del self._live[sandbox_id]
                await live.end()
        self._changed()

    def _failed(self, sandbox_id: str, generation: int, error: SandboxError) -> None:
        text = f"{error.kind}: {error}"[-ERROR_TEXT_CHARS:]
        if isinstance(error, RuntimeUnavailable):
            self._pool.unavailable(sandbox_id, generation, time.monotonic(), text)
        else:
            permanent = isinstance(error, SpecInvalid | EnvError) or getattr(error, "permanent", False)
            self._pool.start_failed(sandbox_id, generation, time.monotonic(), text, permanent)

    async def _probe(self, sandbox_id: str, generation: int) -> None:
        live = self._live.get(sandbox_id)
        if live is None or live.generation != generation:
            return
        try:
            await live.channel.request("ping", timeout_s=self._spec.health.timeout_s)
            ok = True
        except SandboxError:
            ok = False
        self._pool.probed(sandbox_id, generation, ok, time.monotonic())
        self._changed()

    async def _bury(self, sandbox_id: str, live: Live, lost: bool) -> None:
        try:
            if lost:
                why = await live.instance.autopsy()
                self._pool.explained(sandbox_id, live.generation, why[-ERROR_TEXT_CHARS:])
                self._changed()
        finally:
            await live.instance.kill()

    def _ears(self, sandbox_id: str, generation: int) -> Ears:
        return Ears(
            event=lambda event: self._heard(sandbox_id, generation, event),
            lost=lambda why: self._lost(sandbox_id, generation, why),
        )

    def _heard(self, sandbox_id: str, generation: int, event: Header) -> None:
        """The environment inside is gone: the sandbox is recycled, which is no failure of the slot."""
        self._pool.spent(sandbox_id, generation, time.monotonic(), str(event.get("kind")), str(event.get("message")))
        self._changed()

    def _lost(self, sandbox_id: str, generation: int, why: SandboxLost) -> None:
        """Its holder learns why before the pool gives it up."""
        live = self._live.get(sandbox_id)
        if live is not None and live.generation == generation:
            live.channel.fail(why)
        reason = str(why) if type(why) is SandboxLost else f"{why.kind}: {why}"
        self._pool.lost(sandbox_id, generation, time.monotonic(), reason)
        self._changed()
