"""An engine and environments that do what a test tells them to, for players and loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from rocknroll.envs.text import Task
from rocknroll.sandbox.errors import SandboxLost
from rocknroll.trainer.engines.base import Generation, InFlight, Request
from rocknroll.trainer.render import PolicyError
from rocknroll.trainer.rollout.episode import PlayOptions

STOP = 9
TASKS = [Task(f"t{i}", "kind") for i in range(5)]
PATIENCE_S = 10.0
"""Only ever waited in full when a test fails."""


class Words:
    """Observations are one token of value 1; an action is two tokens."""

    stop_ids = (STOP,)
    close_ids = (STOP,)

    def first(self, observation: str) -> list[int]:
        return [0, 1]

    def following(self, observation: str) -> list[int]:
        return [1]

    def action_ids(self, text: str) -> list[int]:
        if not text.isdigit():
            raise PolicyError(f"no words for {text}")
        return [int(text), STOP]

    def action_text(self, ids: Sequence[int]) -> str:
        return str(ids[0])


class ScriptedEngine:
    """Always answers `5 <stop>`, or `5 5` cut at its length; remembers the requests it was shown."""

    def __init__(self, cut: bool = False, aborts: int = 0, fail: Callable[[Request], None] = lambda request: None):
        self._cut = cut
        self._aborts = aborts
        """How many requests new weights cut off."""
        self._fail = fail
        self.requests: list[Request] = []
        self.released: list[str] = []

    async def generate(self, request: Request) -> Generation:
        await asyncio.sleep(0)
        self.requests.append(request)
        self._fail(request)
        if self._aborts:
            self._aborts -= 1
            return Generation((7,), (-0.1,), (2,), "abort", ((7,),) if request.choices else None)
        if self._cut:
            return Generation((5, 5), (-0.5, -0.25), (3, 3), "length")
        allowed = tuple((c[0],) for c in request.choices) if request.choices else None
        return Generation((5, STOP), (-0.5, -0.25), (3, 3), "stop", allowed and (allowed[0], (STOP,)))

    async def release(self, trajectory_id: str) -> None:
        self.released.append(trajectory_id)

    async def abort(self, request_id: str) -> None: ...
    async def suspend(self) -> None: ...
    async def update_weights(self, state: Mapping[str, Any], version: int, in_flight: InFlight = "keep") -> None: ...
    async def resume(self) -> None: ...
    async def close(self) -> None: ...
    def metrics(self) -> Mapping[str, float]:
        return {}


class CountingEnv:
    """Won at the third step, for a reward of `prize`; the command `5` is invalid at the second."""

    def __init__(self, at_step: Callable[[int], Any], commands: Sequence[str], prize: float) -> None:
        self._step = 0
        self._at_step = at_step
        self._commands = list(commands)
        self._prize = prize

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        return "start", {"admissible_commands": self._commands, "state_hash": "s0"}

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._step += 1
        waiting = self._at_step(self._step)
        if waiting is not None:
            await waiting
        done = self._step == 3
        info = {
            "progress": self._step / 4,
            "admissible_commands": self._commands,
            "invalid_action": self._step == 2,
            "won": done,
        }
        return "text", self._prize if done else 0.0, done, False, info | {"state_hash": f"s{self._step}"}


class Leases:
    """Environments by owner. `at_step(owner, step)` may raise, or return something to wait for; so may `ask(owner)`,
    which comes before the lease."""

    def __init__(
        self,
        at_step: Callable[[str, int], Any] = lambda owner, step: None,
        *,
        ask: Callable[[str], Any] = lambda owner: None,
        commands: Sequence[str] = ("5",),
        prize: float = 1.0,
    ) -> None:
        self._at_step = at_step
        self._ask = ask
        self._commands = commands
        self._prize = prize
        self.open = 0
        self.owners: list[str] = []
        self.recycled: list[str] = []

    @asynccontextmanager
    async def lease(self, owner: str, task: Task) -> AsyncIterator[CountingEnv]:
        waiting = self._ask(owner)
        if waiting is not None:
            await waiting
        self.open += 1
        self.owners.append(owner)
        try:
            yield CountingEnv(lambda step: self._at_step(owner, step), self._commands, self._prize)
        except BaseException:
            self.recycled.append(owner)
            raise
        finally:
            self.open -= 1


def losing(*owners: str) -> Callable[[str, int], None]:
    """The sandboxes of these owners die in their second step; without owners, all do."""

    def at_step(owner: str, step: int) -> None:
        if step == 2 and (not owners or owner in owners):
            raise SandboxLost("killed")

    return at_step


def hanging(*owners: str) -> Callable[[str, int], Any]:
    """The second step of these owners never returns."""
    return lambda owner, step: asyncio.Event().wait() if step == 2 and owner in owners else None


def options(**changes: Any) -> PlayOptions:
    defaults: dict[str, Any] = {
        "max_action_tokens": 2,
        "max_length": 64,
        "temperature": 1.0,
        "constrained": False,
        "invalid_action_penalty": 0.2,
    }
    return PlayOptions(**(defaults | changes))


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks go on until the condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)
