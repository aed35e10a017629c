"""Episodes and the loop around them, with an engine and environments that fail on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rocknroll.envs.text import Task
from rocknroll.sandbox.errors import SandboxLost
from rocknroll.trainer.engines.base import Generation, Request
from rocknroll.trainer.render import PolicyError
from rocknroll.trainer.rollout.episode import Player, PlayOptions
from rocknroll.trainer.rollout.loop import RolloutFailed, RolloutLoop
from rocknroll.trainer.rollout.scheduler import Scheduler, SchedulerOptions
from rocknroll.trainer.rollout.tasks import TaskOrder
from rocknroll.trainer.trajectory import NO_VERSION, Outcome

STOP = 9
TASKS = [Task(f"t{i}", "kind") for i in range(5)]


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
    """Always answers `5 <stop>`, or `5 5` cut at its length; remembers the prompts it was shown."""

    def __init__(self, cut: bool = False) -> None:
        self._cut = cut
        self.prompts: dict[str, tuple[int, ...]] = {}
        self.released: list[str] = []

    async def generate(self, request: Request) -> Generation:
        await asyncio.sleep(0)
        self.prompts[request.id] = tuple(request.prompt_ids)
        if self._cut:
            return Generation((5, 5), (-0.5, -0.25), (3, 3), "length")
        allowed = tuple((c[0],) for c in request.choices) if request.choices else None
        return Generation((5, STOP), (-0.5, -0.25), (3, 3), "stop", allowed and (allowed[0], (STOP,)))

    async def release(self, trajectory_id: str) -> None:
        self.released.append(trajectory_id)

    async def abort(self, request_id: str) -> None: ...
    async def suspend(self) -> None: ...
    async def update_weights(self, state: Mapping[str, Any], version: int) -> None: ...
    async def resume(self) -> None: ...
    async def close(self) -> None: ...
    def metrics(self) -> Mapping[str, float]:
        return {}


class CountingEnv:
    """Won at the third step; the command `5` is invalid at the second."""

    def __init__(self, lose: bool, commands: Sequence[str]) -> None:
        self._step = 0
        self._lose = lose
        self._commands = list(commands)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        return "start", {"admissible_commands": self._commands, "state_hash": "s0"}

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._step += 1
        if self._lose and self._step == 2:
            raise SandboxLost("killed")
        done = self._step == 3
        info = {
            "progress": self._step / 4,
            "admissible_commands": self._commands,
            "invalid_action": self._step == 2,
            "won": done,
        }
        return "text", float(done), done, False, info | {"state_hash": f"s{self._step}"}


class Leases:
    """Environments by owner; those in `lost` die in their second step."""

    def __init__(self, lost: Sequence[str] = (), lose_all: bool = False, commands: Sequence[str] = ("5",)) -> None:
        self._lost = lost
        self._commands = commands
        self._lose_all = lose_all
        self.open = 0
        self.owners: list[str] = []

    @asynccontextmanager
    async def lease(self, owner: str) -> AsyncIterator[CountingEnv]:
        self.open += 1
        self.owners.append(owner)
        try:
            yield CountingEnv(self._lose_all or owner in self._lost, self._commands)
        finally:
            self.open -= 1


def options(**changes: Any) -> PlayOptions:
    defaults: dict[str, Any] = {
        "max_action_tokens": 2,
        "max_length": 64,
        "temperature": 1.0,
        "constrained": False,
        "invalid_action_penalty": 0.2,
    }
    return PlayOptions(**(defaults | changes))


def make_loop(leases: Leases, retries: int = 3, concurrency: int = 4) -> tuple[RolloutLoop, Scheduler]:
    scheduler = Scheduler(TaskOrder(TASKS, 0), SchedulerOptions(num_groups=2, group_size=2, infra_retries=retries))
    player = Player(leases, ScriptedEngine(), Words(), options())
    loop = RolloutLoop(scheduler, player, concurrency=concurrency, seed=0, max_infra_error_rate=0.5)
    return loop, scheduler


@pytest.mark.asyncio
async def test_a_trajectory_marks_exactly_the_sampled_tokens() -> None:
    engine = ScriptedEngine()
    trajectory = await Player(Leases(), engine, Words(), options()).play("e", "g", TASKS[0])
    assert trajectory.token_ids.tolist() == [0, 1, 5, STOP, 1, 5, STOP, 1, 5, STOP]
    assert trajectory.action_mask.tolist() == [False, False, True, True, False, True, True, False, True, True]
    assert trajectory.versions.tolist() == [NO_VERSION] * 2 + [3, 3, NO_VERSION, 3, 3, NO_VERSION, 3, 3]
    assert trajectory.outcome is Outcome.COMPLETED and trajectory.success
    assert [turn.reward for turn in trajectory.turns] == pytest.approx([0.0, -0.2, 1.0])
    assert [turn.state_hash for turn in trajectory.turns] == ["s0", "s1", "s2"]
    assert engine.prompts["e/2"] == tuple(trajectory.token_ids[:8].tolist())
    assert engine.released == ["e"]


@pytest.mark.asyncio
async def test_an_action_cut_at_its_length_is_closed_by_tokens_that_nobody_sampled() -> None:
    trajectory = await Player(Leases(), ScriptedEngine(cut=True), Words(), options()).play("e", "g", TASKS[0])
    assert trajectory.token_ids[:6].tolist() == [0, 1, 5, 5, STOP, 1]
    assert trajectory.action_mask[:6].tolist() == [False, False, True, True, False, False]


@pytest.mark.asyncio
async def test_slots_are_busy_only_while_they_play() -> None:
    loop, _ = make_loop(Leases())
    await loop.start()
    await asyncio.wait_for(loop.evaluate(TASKS, 0.0), 5)
    busy_s = loop.slot_busy_s()
    assert busy_s > 0
    await asyncio.sleep(0.02)
    assert loop.slot_busy_s() == busy_s, "no episode plays any more"
    await loop.stop()


@pytest.mark.asyncio
async def test_progress_is_rewarded_by_its_changes() -> None:
    player = Player(Leases(), ScriptedEngine(), Words(), options(progress_reward=2.0, invalid_action_penalty=0.0))
    trajectory = await player.play("e", "g", TASKS[0])
    assert [turn.reward for turn in trajectory.turns] == pytest.approx([0.5, 0.5, 1.5])
    assert [turn.progress for turn in trajectory.turns] == [0.0, 0.25, 0.5], "as it was before the action"


@pytest.mark.asyncio
async def test_an_episode_that_would_not_fit_is_truncated() -> None:
    trajectory = await Player(Leases(), ScriptedEngine(), Words(), options(max_length=7)).play("e", "g", TASKS[0])
    assert trajectory.outcome is Outcome.TRUNCATED
    assert len(trajectory.turns) == 2


@pytest.mark.asyncio
async def test_allowed_tokens_travel_with_constrained_actions() -> None:
    trajectory = await Player(Leases(), ScriptedEngine(), Words(), options(constrained=True)).play("e", "g", TASKS[0])
    assert trajectory.allowed == ((5,), (STOP,)) * 3


@pytest.mark.asyncio
async def test_a_command_that_the_policy_has_no_words_for_is_no_choice() -> None:
    player = Player(Leases(commands=["take zither 1", "5"]), ScriptedEngine(), Words(), options(constrained=True))
    trajectory = await player.play("e", "g", TASKS[0])
    assert trajectory.allowed == ((5,), (STOP,)) * 3


@pytest.mark.asyncio
async def test_a_lost_sandbox_is_an_outcome_with_its_cause() -> None:
    trajectory = await Player(Leases(lost=["e"]), ScriptedEngine(), Words(), options()).play("e", "g", TASKS[0])
    assert trajectory.outcome is Outcome.INFRA_ERROR
    assert trajectory.error.startswith("SandboxLost:")


@pytest.mark.asyncio
async def test_a_lost_episode_costs_itself_and_the_batch_still_comes() -> None:
    leases = Leases(lost=["g0.1.0"])
    loop, _ = make_loop(leases)
    await loop.start()
    batch = await asyncio.wait_for(loop.next_batch(), 5)
    await loop.stop()
    assert {g.id for g in batch} == {"g0", "g1"}
    assert loop.outcomes == {"completed": 4, "infra_error": 1, "infra_error/SandboxLost": 1, "retried": 1}
    assert leases.open == 0


@pytest.mark.asyncio
async def test_a_run_stops_when_nearly_everything_is_lost_and_says_why() -> None:
    loop, _ = make_loop(Leases(lose_all=True), retries=1000)
    await loop.start()
    with pytest.raises(RolloutFailed, match=r"max_infra_error_rate.*SandboxLost: killed"):
        await asyncio.wait_for(loop.next_batch(), 5)
    await loop.stop()


@pytest.mark.asyncio
async def test_training_waits_while_an_evaluation_plays_and_a_loss_is_played_again() -> None:
    leases = Leases(lost=["eval1.2.0"])
    loop, _ = make_loop(leases)
    await loop.train()
    evaluation = asyncio.create_task(loop.evaluate(TASKS, 0.0))
    await asyncio.sleep(0)
    await loop.start()
    trajectories = await asyncio.wait_for(evaluation, 5)
    await loop.stop()
    assert all(owner.startswith("eval1.") for owner in leases.owners[: len(TASKS) + 1])
    assert [t.task_id for t in trajectories] == [t.id for t in TASKS]
    assert trajectories[2].id == "eval1.2.1"
    assert all(t.success for t in trajectories)


@pytest.mark.asyncio
async def test_evaluation_results_come_in_task_order() -> None:
    loop, _ = make_loop(Leases(), concurrency=3)
    await loop.start()
    heard: list[int] = []
    trajectories = await asyncio.wait_for(loop.evaluate(TASKS, 0.0, heard.append), 5)
    await loop.stop()
    assert [t.task_id for t in trajectories] == [t.id for t in TASKS]
    assert heard[-1] == len(TASKS)
