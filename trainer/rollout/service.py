"""The rollout side as a process of its own: fleet, engine and loop beside the learner.

Small models spend their time in Python, so engine and learner only overlap when they share no
interpreter lock. The learner talks to this process over one pipe, one call at a time; weights travel
as a safetensors file. The process ends when the pipe closes, so a killed learner leaves nothing.
"""

from __future__ import annotations

import asyncio
import multiprocessing as mp
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from rocknroll.envs.text import Task
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.rollout.loop import RolloutFailed
from rocknroll.trainer.trajectory import Group, Trajectory

STOP_TIMEOUT_S = 20.0
"""How long a stopping process may take to reclaim its sandboxes before it is killed."""


@dataclass(frozen=True)
class RolloutBatch:
    """What the learner gets for one optimiser batch."""

    groups: tuple[Group, ...]
    metrics: dict[str, float]
    outcomes: dict[str, int]
    """Episodes since the start by outcome, infrastructure errors also by cause."""


class RolloutService:
    """The learner's end: starts the process and calls it. Not thread-safe.

    Every call raises RolloutFailed when the process failed or died.
    """

    def __init__(self, recipe: Recipe, model_folder: Path, *, concurrency: int | None = None) -> None:
        context = mp.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, recipe, model_folder, concurrency), name="rollout", daemon=False
        )
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """Process id of the rollout process."""
        assert self._process.pid is not None
        return self._process.pid

    def ready(self) -> None:
        """Wait until the model is loaded and the first sandbox plays."""
        self._call("ready")

    def next_batch(self) -> RolloutBatch:
        """The next batch of groups; blocks until it is complete."""
        batch: RolloutBatch = self._call("next_batch")
        return batch

    def publish(self, version: int, weights: Path) -> None:
        """Swap the engine's weights for those in `weights` (safetensors)."""
        self._call("publish", version, str(weights))

    def evaluate(
        self, tasks: Sequence[Task], temperature: float, progress: Callable[[int, int], None] | None = None
    ) -> list[Trajectory]:
        """Play each task once with the current weights."""
        trajectories: list[Trajectory] = self._call("evaluate", list(tasks), temperature, progress=progress)
        return trajectories

    def state_dict(self) -> dict[str, Any]:
        """The scheduler's cursor, as of the batches handed out so far."""
        state: dict[str, Any] = self._call("state_dict")
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the cursor; before the first batch only."""
        self._call("load_state_dict", dict(state))

    def sandbox_pids(self) -> list[int]:
        """Process ids of the live sandboxes (fault injection, doctor)."""
        pids: list[int] = self._call("sandbox_pids")
        return pids

    def stop(self) -> None:
        """End the process and its sandboxes; safe to call twice and after a failure."""
        if self._process.is_alive():
            with suppress(OSError):  # it is gone already, which is what stop is for
                self._connection.send(("stop", ()))
            self._process.join(STOP_TIMEOUT_S)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
        self._connection.close()

    def _call(self, method: str, *args: Any, progress: Callable[[int, int], None] | None = None) -> Any:
        try:
            self._connection.send((method, args))
            while True:
                wait([self._connection, self._process.sentinel])
                kind, *payload = self._connection.recv()
                if kind == "progress":
                    if progress is not None:
                        progress(*payload)
                elif kind == "error":
                    raise RolloutFailed(payload[0])
                else:
                    return payload[0]
        except (EOFError, BrokenPipeError, ConnectionResetError) as failure:
            self._process.join(1.0)
            raise RolloutFailed(
                f"the rollout process died (exit code {self._process.exitcode}) during {method}; "
                "its last words are above. `roll train --resume` goes on from the last checkpoint."
            ) from failure


def _serve(connection: Connection, recipe: Recipe, model_folder: Path, concurrency: int | None) -> None:
    """Entry point of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the learner decides
    try:
        asyncio.run(_Server(connection, recipe, model_folder, concurrency).run())
    except (EOFError, BrokenPipeError, ConnectionResetError):
        sys.exit(1)  # the learner is gone
    finally:
        connection.close()


class _Server:
    """The process's end: builds the rollout side and answers calls in order."""

    def __init__(self, connection: Connection, recipe: Recipe, model_folder: Path, concurrency: int | None) -> None:
        self._connection = connection
        self._recipe = recipe
        self._model_folder = model_folder
        self._concurrency = concurrency or recipe.sandbox.count

    async def run(self) -> None:
        from rocknroll.trainer.rollout.assembly import assemble

        calls: asyncio.Queue[tuple[str, tuple[Any, ...]] | None] = asyncio.Queue()
        asyncio.get_running_loop().add_reader(self._connection.fileno(), self._read, calls)
        try:
            async with assemble(self._recipe, self._model_folder, self._concurrency) as self._parts:
                while (call := await calls.get()) is not None and call[0] != "stop":
                    await self._answer(*call)
        except Exception as failure:
            self._connection.send(("error", f"{type(failure).__name__}: {failure}"))
            raise

    def _read(self, calls: asyncio.Queue[tuple[str, tuple[Any, ...]] | None]) -> None:
        try:
            while self._connection.poll():
                calls.put_nowait(self._connection.recv())
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self._connection.fileno())
            calls.put_nowait(None)

    async def _answer(self, method: str, args: tuple[Any, ...]) -> None:
        try:
            result = await getattr(self, f"_do_{method}")(*args)
        except RolloutFailed as failure:
            self._connection.send(("error", str(failure)))
        else:
            self._connection.send(("result", result))

    async def _do_ready(self) -> None:
        await self._parts.ready()

    async def _do_next_batch(self) -> RolloutBatch:
        asked = time.perf_counter()
        parts = self._parts
        batch = await parts.loop.next_batch(parts.scheduler.batches_taken)
        metrics = parts.metrics(batch.groups, time.perf_counter() - asked)
        return RolloutBatch(batch.groups, metrics, dict(parts.loop.outcomes))

    async def _do_publish(self, version: int, weights: str) -> None:
        from safetensors.torch import load_file

        engine = self._parts.engine
        await engine.suspend()
        await engine.update_weights(load_file(weights), version)
        await engine.resume()
        await self._parts.loop.on_version(version)

    async def _do_evaluate(self, tasks: list[Task], temperature: float) -> list[Trajectory]:
        def tell(done: int) -> None:
            self._connection.send(("progress", done, len(tasks)))

        return await self._parts.loop.evaluate(tasks, temperature, tell)

    async def _do_state_dict(self) -> dict[str, Any]:
        return self._parts.scheduler.state_dict()

    async def _do_load_state_dict(self, state: dict[str, Any]) -> None:
        self._parts.scheduler.load_state_dict(_without_trajectories(state), {})

    async def _do_sandbox_pids(self) -> list[int]:
        return self._parts.sandbox_pids()


def _without_trajectories(state: Mapping[str, Any]) -> dict[str, Any]:
    """A scheduler's state in which the kept members of open groups are to be played again."""
    kept = [[group["index"], member] for group in state["open"] for member in group["kept"]]
    groups = [{**group, "kept": []} for group in state["open"]]
    return {**state, "open": groups, "complete": [], "queue": kept + state["queue"]}
