"""The rollout side as a process of its own: fleet, engine and loop beside the learner.

Small models spend their time in Python, so engine and learner only overlap when they share no
interpreter lock. The learner talks to this process over one pipe, one call at a time; weights travel
as a safetensors file. A batch lies in its file before the learner gets it, and the ledger has every
finished episode, so both sides may be killed at any moment. The process ends when the pipe closes,
whatever it is doing, so a killed learner leaves nothing.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from rocknroll.envs.text import Task
from rocknroll.sandbox.alerts.clock import steady_clock
from rocknroll.sandbox.alerts.readings import FleetReader
from rocknroll.sandbox.alerts.rule import Reading
from rocknroll.trainer.engines.weights_file import WeightsFile
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.rollout import forking
from rocknroll.trainer.rollout.batch_files import BatchFiles
from rocknroll.trainer.rollout.ledger import Ledger
from rocknroll.trainer.rollout.ledger_file import LedgerError
from rocknroll.trainer.rollout.loop import RolloutFailed
from rocknroll.trainer.rollout.showing import shown
from rocknroll.trainer.run_folder import RunFolder
from rocknroll.trainer.storage import StorageError
from rocknroll.trainer.trajectory import Group, Trajectory

STOP_TIMEOUT_S = 20.0
"""How long a stopping process may take to reclaim its sandboxes before it is killed."""


ERRORS = {error.__name__: error for error in (RolloutFailed, StorageError, LedgerError)}
"""What the learner's end raises as what it was on the other side; anything else becomes RolloutFailed."""


@dataclass(frozen=True)
class RolloutBatch:
    """What the learner gets for one optimiser batch."""

    groups: tuple[Group, ...]
    metrics: dict[str, float]
    """`batch/replayed` is 1 for a batch that was handed out before and is read from its file."""
    outcomes: dict[str, int]
    """Episodes since the start by outcome, infrastructure errors also by cause."""


class RolloutService:
    """The learner's end: starts the process and calls it. Not thread-safe.

    With a run folder the run that is there is gone on with; without one nothing is written. Every call raises
    RolloutFailed when the process failed or died, and what its files are to blame for as StorageError or LedgerError.
    """

    def __init__(self, recipe: Recipe, model_folder: Path, *, run_folder: Path | None = None) -> None:
        self._connection, theirs = Pipe()
        self._process = forking.process(_serve, theirs, recipe, model_folder, run_folder, name="rollout")
        self._process.start()
        theirs.close()
        self.heard: Callable[[int, Sequence[Reading]], None] = lambda finished, of_sandboxes: None
        """Told every `alerts.every_s` seconds of a call how many episodes have been finished since the start, and what
        there is to read of the sandboxes."""

    @property
    def pid(self) -> int:
        """Process id of the rollout process."""
        assert self._process.pid is not None
        return self._process.pid

    def ready(self) -> None:
        """Wait until the model is loaded and the first sandbox plays."""
        self._call("ready")

    def next_batch(self, version: int) -> RolloutBatch:
        """The groups that policy `version` trains on; blocks until they are complete.

        A batch that was handed out before, to a learner that was killed, is the same again.
        """
        batch: RolloutBatch = self._call("next_batch", version)
        return batch

    def ready_groups(self, version: int, seen: int) -> Sequence[Group]:
        """Complete groups of the batch for `version` beyond the first `seen`; blocks until there is one."""
        groups: Sequence[Group] = self._call("ready_groups", version, seen)
        return groups

    def publish(self, version: int, weights: Path) -> None:
        """Swap the engine's weights for those in `weights` (safetensors)."""
        self._call("publish", version, str(weights))

    def evaluate(
        self, tasks: Sequence[Task], temperature: float, progress: Callable[[int, int], None] | None = None
    ) -> list[Trajectory]:
        """Play each task once with the current weights."""
        trajectories: list[Trajectory] = self._call("evaluate", list(tasks), temperature, progress=progress)
        return trajectories

    def sandbox_pids(self) -> list[int]:
        """Process ids of the live sandboxes (fault injection, doctor)."""
        pids: list[int] = self._call("sandbox_pids")
        return pids

    def stop(self) -> None:
        """End the process and its sandboxes, whatever it is doing; safe to call twice and after a failure."""
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
                elif kind == "news":
                    self.heard(*payload)
                elif kind == "error":
                    name, text = payload
                    raise ERRORS.get(name, RolloutFailed)(text)
                else:
                    return payload[0]
        except (EOFError, BrokenPipeError, ConnectionResetError) as failure:
            self._process.join(1.0)
            raise RolloutFailed(
                f"the rollout process died (exit code {self._process.exitcode}) during {method}; "
                "its last words are above."
            ) from failure


def _serve(connection: Connection, recipe: Recipe, model_folder: Path, run_folder: Path | None) -> None:
    """Entry point of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the learner decides
    folder = None if run_folder is None else RunFolder(run_folder)
    try:
        asyncio.run(_Server(connection, recipe, model_folder, folder).run())
    except (EOFError, BrokenPipeError, ConnectionResetError):
        sys.exit(1)  # the learner is gone
    finally:
        connection.close()


class _Server:
    """The process's end: builds the rollout side and answers calls in order."""

    def __init__(self, connection: Connection, recipe: Recipe, model_folder: Path, folder: RunFolder | None) -> None:
        self._connection = connection
        self._recipe = recipe
        self._model_folder = model_folder
        self._folder = folder
        self._calls: asyncio.Queue[tuple[str, tuple[Any, ...]]] = asyncio.Queue()
        self._clock = steady_clock()
        self._told_at = 0.0

    async def run(self) -> None:
        """Answer until the learner says stop or is gone, which ends any call at once."""
        answering = asyncio.create_task(self._answer_calls())
        asyncio.get_running_loop().add_reader(self._connection.fileno(), self._read, answering)
        with suppress(asyncio.CancelledError):
            await answering

    def _read(self, answering: asyncio.Task[None]) -> None:
        try:
            while self._connection.poll():
                call = self._connection.recv()
                if call[0] == "stop":
                    raise EOFError
                self._calls.put_nowait(call)
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self._connection.fileno())
            answering.cancel()

    async def _answer_calls(self) -> None:
        from rocknroll.trainer.rollout.assembly import assemble

        try:
            with closing(Ledger(self._folder.ledger if self._folder else None)) as ledger:
                logs = None if self._folder is None else self._folder.path
                async with assemble(self._recipe, self._model_folder, ledger, logs=logs) as self._parts:
                    fleets, playing = self._parts.fleets_by_name(), self._parts.environments.playing
                    self._reader = FleetReader(fleets, {}, "the rollout process")
                    self._files = BatchFiles(self._folder.trajectories if self._folder else None, ledger)
                    self._go_on(ledger)
                    async with shown(fleets, playing, self._folder.fleet_file if self._folder else None):
                        while True:
                            await self._answer(*await self._calls.get())
        except Exception as failure:
            self._connection.send(("error", type(failure).__name__, _in_words(failure)))
            raise

    def _go_on(self, ledger: Ledger) -> None:
        """Take up the run that is in the folder, if there is one."""
        self._files.recover()
        restored = ledger.restore()
        if restored is not None:
            self._parts.scheduler.load_state_dict(restored.state, restored.trajectories)

    async def _answer(self, method: str, args: tuple[Any, ...]) -> None:
        telling = asyncio.create_task(self._tell())
        try:
            result = await getattr(self, f"_do_{method}")(*args)
        except tuple(ERRORS.values()) as failure:
            telling.cancel()
            self._connection.send(("error", type(failure).__name__, str(failure)))
        else:
            telling.cancel()
            self._connection.send(("result", result))

    async def _tell(self) -> None:
        """While a call goes on, and so somebody listens, tell how the rollouts are."""
        every_s = self._recipe.alerts.every_s
        while True:
            await asyncio.sleep(max(0.0, self._told_at + every_s - self._clock()))
            self._told_at = self._clock()
            readings = await self._reader.read(self._told_at)
            self._connection.send(("news", self._parts.loop.finished, readings))

    async def _do_ready(self) -> None:
        await self._parts.ready()

    async def _do_next_batch(self, version: int) -> RolloutBatch:
        await self._go_back_to(version)
        outcomes = dict(self._parts.loop.outcomes)
        if self._files.taken(version):
            return RolloutBatch(self._files.read(version), {"batch/replayed": 1.0}, outcomes)
        asked = time.perf_counter()
        batch = await self._parts.loop.next_batch(version)
        waited_s = time.perf_counter() - asked
        await asyncio.to_thread(self._files.write, batch.index, batch.groups)
        self._files.known_good(batch.index)
        metrics = self._parts.metrics(batch.groups, waited_s) | {"batch/replayed": 0.0}
        return RolloutBatch(batch.groups, metrics, dict(self._parts.loop.outcomes))

    async def _do_ready_groups(self, version: int, seen: int) -> Sequence[Group]:
        await self._go_back_to(version)
        if self._files.taken(version):
            return self._files.read(version)[seen:]
        return await self._parts.loop.ready_groups(version, seen)

    async def _do_publish(self, version: int, weights: str) -> None:
        engine = self._parts.engine
        await engine.suspend()
        await engine.update_weights(WeightsFile(Path(weights)), version, self._recipe.rollout.in_flight)
        await engine.resume()
        await self._parts.loop.on_version(version)

    async def _go_back_to(self, version: int) -> None:
        """A restored scheduler may be ahead of a learner that begins again at version 0, which publishes nothing."""
        if self._parts.scheduler.version > version:
            await self._parts.loop.on_version(version)

    async def _do_evaluate(self, tasks: list[Task], temperature: float) -> list[Trajectory]:
        def tell(done: int) -> None:
            self._connection.send(("progress", done, len(tasks)))

        return await self._parts.loop.evaluate(tasks, temperature, tell)

    async def _do_sandbox_pids(self) -> list[int]:
        return self._parts.sandbox_pids()


def _in_words(failure: Exception) -> str:
    return str(failure) if type(failure).__name__ in ERRORS else f"{type(failure).__name__}: {failure}"
