"""One episode: what its trajectory says, and what becomes of everything that can go wrong in it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scripted import STOP, TASKS, Leases, ScriptedEngine, Words, hanging, losing, options, until

from rocknroll.envs.text import Task
from rocknroll.sandbox.errors import FleetExhausted
from rocknroll.trainer.engines.base import EngineError, Request
from rocknroll.trainer.rewards.workers import EpisodeText, Reward, RewardFailed
from rocknroll.trainer.rollout.episode import REDOS, Player
from rocknroll.trainer.trajectory import NO_VERSION, Outcome


def player(leases: Leases | None = None, engine: ScriptedEngine | None = None, **changes: Any) -> Player:
    return Player(leases or Leases(), engine or ScriptedEngine(), Words(), options(**changes))


@pytest.mark.asyncio
async def test_a_trajectory_marks_exactly_the_sampled_tokens() -> None:
    engine = ScriptedEngine()
    trajectory = await player(engine=engine).play("e", "g", TASKS[0])
    assert trajectory.token_ids.tolist() == [0, 1, 5, STOP, 1, 5, STOP, 1, 5, STOP]
    assert trajectory.action_mask.tolist() == [False, False, True, True, False, True, True, False, True, True]
    assert trajectory.versions.tolist() == [NO_VERSION] * 2 + [3, 3, NO_VERSION, 3, 3, NO_VERSION, 3, 3]
    assert trajectory.outcome is Outcome.COMPLETED and trajectory.success
    assert [turn.reward for turn in trajectory.turns] == pytest.approx([0.0, -0.2, 1.0])
    assert [turn.state_hash for turn in trajectory.turns] == ["s0", "s1", "s2"]
    assert engine.requests[2].id == "e/2"
    assert engine.requests[2].prompt_ids == tuple(trajectory.token_ids[:8].tolist())
    assert engine.released == ["e"]


@pytest.mark.asyncio
async def test_an_episode_stays_on_its_engine_and_knows_its_domain() -> None:
    engine = ScriptedEngine()
    trajectory = await player(engine=engine).play("e", "g", Task("t", "kind", domain="house"), engine=2)
    assert {request.engine for request in engine.requests} == {2}
    assert trajectory.domain == "house"


@pytest.mark.asyncio
async def test_an_action_cut_at_its_length_is_closed_by_tokens_that_nobody_sampled() -> None:
    trajectory = await player(engine=ScriptedEngine(cut=True)).play("e", "g", TASKS[0])
    assert trajectory.token_ids[:6].tolist() == [0, 1, 5, 5, STOP, 1]
    assert trajectory.action_mask[:6].tolist() == [False, False, True, True, False, False]


@pytest.mark.asyncio
async def test_progress_is_rewarded_by_its_changes() -> None:
    trajectory = await player(progress_reward=2.0, invalid_action_penalty=0.0).play("e", "g", TASKS[0])
    assert [turn.reward for turn in trajectory.turns] == pytest.approx([0.5, 0.5, 1.5])
    assert [turn.progress for turn in trajectory.turns] == [0.0, 0.25, 0.5], "as it was before the action"


@pytest.mark.asyncio
async def test_an_episode_that_would_not_fit_is_truncated() -> None:
    trajectory = await player(max_length=7).play("e", "g", TASKS[0])
    assert trajectory.outcome is Outcome.TRUNCATED
    assert len(trajectory.turns) == 2


@pytest.mark.asyncio
async def test_allowed_tokens_travel_with_constrained_actions() -> None:
    trajectory = await player(constrained=True).play("e", "g", TASKS[0])
    assert trajectory.allowed == ((5,), (STOP,)) * 3


@pytest.mark.asyncio
async def test_a_command_that_the_policy_has_no_words_for_is_no_choice() -> None:
    trajectory = await player(Leases(commands=["take zither 1", "5"]), constrained=True).play("e", "g", TASKS[0])
    assert trajectory.allowed == ((5,), (STOP,)) * 3


@pytest.mark.asyncio
async def test_a_lost_sandbox_is_an_outcome_with_its_cause() -> None:
    leases, engine = Leases(losing("e")), ScriptedEngine()
    trajectory = await player(leases, engine).play("e", "g", TASKS[0])
    assert trajectory.outcome is Outcome.INFRA_ERROR
    assert (trajectory.cause, trajectory.error) == ("sandbox_lost", "SandboxLost: killed")
    assert leases.recycled == ["e"] and engine.released == ["e"]


@pytest.mark.asyncio
async def test_a_failed_generation_is_an_outcome_with_its_cause() -> None:
    def fail(request: Request) -> None:
        raise EngineError("out of memory")

    trajectory = await player(engine=ScriptedEngine(fail=fail)).play("e", "g", TASKS[0])
    assert (trajectory.outcome, trajectory.cause) == (Outcome.INFRA_ERROR, "engine_error")


@pytest.mark.asyncio
async def test_an_episode_that_is_not_over_in_time_is_lost_and_says_where_it_was() -> None:
    leases, engine = Leases(hanging("e")), ScriptedEngine()
    trajectory = await asyncio.wait_for(player(leases, engine, timeout_s=0.05).play("e", "g", TASKS[0]), 10)
    assert (trajectory.outcome, trajectory.cause) == (Outcome.INFRA_ERROR, "episode_timeout")
    assert "in turn 2" in trajectory.error and "rollout.episode_timeout_s" in trajectory.error
    assert leases.recycled == ["e"] and engine.released == ["e"]


@pytest.mark.asyncio
async def test_waiting_for_a_sandbox_does_not_count_against_the_episode() -> None:
    trajectory = await player(Leases(ask=lambda owner: asyncio.sleep(0.3)), timeout_s=0.2).play("e", "g", TASKS[0])
    assert trajectory.outcome is Outcome.COMPLETED
    assert trajectory.timings_s["queue"] > 0.2


@pytest.mark.asyncio
async def test_a_timeout_that_nobody_set_is_a_fault_of_this_program() -> None:
    def at_step(owner: str, step: int) -> None:
        raise TimeoutError("not ours")

    with pytest.raises(TimeoutError, match="not ours"):
        await player(Leases(at_step), timeout_s=60).play("e", "g", TASKS[0])


@pytest.mark.asyncio
async def test_a_fleet_that_can_have_no_sandbox_is_no_loss_of_one_episode() -> None:
    def ask(owner: str) -> None:
        raise FleetExhausted("no sandbox can start")

    with pytest.raises(FleetExhausted):
        await player(Leases(ask=ask)).play("e", "g", TASKS[0])


@pytest.mark.asyncio
@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
async def test_a_reward_that_is_no_number_is_a_fault_of_the_environment(reward: float) -> None:
    trajectory = await player(Leases(prize=reward)).play("e", "g", TASKS[0])
    assert (trajectory.outcome, trajectory.cause) == (Outcome.INFRA_ERROR, "env_error")


@pytest.mark.asyncio
async def test_a_turn_that_new_weights_cut_off_is_played_again_from_its_start() -> None:
    engine = ScriptedEngine(aborts=2)
    trajectory = await player(engine=engine, constrained=True).play("e", "g", TASKS[0])
    first, again, third, following, *_ = engine.requests
    assert first.prompt_ids == again.prompt_ids == third.prompt_ids != following.prompt_ids
    assert trajectory.outcome is Outcome.COMPLETED
    assert trajectory.token_ids.tolist() == [0, 1, 5, STOP, 1, 5, STOP, 1, 5, STOP], "nothing of the cut attempts"
    assert trajectory.versions.max() == trajectory.oldest_version == 3


@pytest.mark.asyncio
async def test_a_turn_that_is_cut_off_for_ever_is_given_up() -> None:
    engine = ScriptedEngine(aborts=10**6)
    trajectory = await player(engine=engine).play("e", "g", TASKS[0])
    assert (trajectory.outcome, trajectory.cause) == (Outcome.INFRA_ERROR, "engine_error")
    assert "rollout.in_flight" in trajectory.error
    assert len(engine.requests) == REDOS + 1


@pytest.mark.asyncio
async def test_a_cancelled_episode_leaves_nothing_behind() -> None:
    leases, engine = Leases(hanging("e")), ScriptedEngine()
    playing = asyncio.create_task(player(leases, engine).play("e", "g", TASKS[0]))
    await until(lambda: len(engine.requests) == 2)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert leases.open == 0 and leases.recycled == ["e"] and engine.released == ["e"]


class Judge:
    """A reward of 0.25 for everything, or none at all."""

    def __init__(self, leases: Leases, fails: bool = False) -> None:
        self._leases = leases
        self._fails = fails
        self.open: list[int] = []
        self.read: list[EpisodeText] = []

    async def score(self, task: Task, episode: EpisodeText) -> Reward:
        self.open.append(self._leases.open)
        self.read.append(episode)
        if self._fails:
            raise RewardFailed("the function raised")
        return Reward(0.25)


@pytest.mark.asyncio
async def test_the_recipe_s_own_reward_comes_on_top_of_the_last_turn_s() -> None:
    leases, left = Leases(), []
    judge = Judge(leases)
    subject = Player(leases, ScriptedEngine(), Words(), options(), judge)
    trajectory = await subject.play("e", "g", TASKS[0], leave=lambda: left.append(leases.open))
    assert [turn.reward for turn in trajectory.turns] == pytest.approx([0.0, -0.2, 1.25])
    assert judge.open == left == [0], "the environment was given back before"
    (episode,) = judge.read
    assert episode.success
    assert [(turn.observation, turn.action, turn.reward) for turn in episode.turns] == [
        ("start", "5", 0.0),
        ("text", "5", 0.0),
        ("text", "5", 1.0),
    ]


@pytest.mark.asyncio
async def test_a_truncated_episode_is_rewarded_too() -> None:
    leases = Leases()
    subject = Player(leases, ScriptedEngine(), Words(), options(max_length=7), Judge(leases))
    trajectory = await subject.play("e", "g", TASKS[0])
    assert trajectory.outcome is Outcome.TRUNCATED
    assert trajectory.turns[-1].reward == pytest.approx(-0.2 + 0.25)


@pytest.mark.asyncio
async def test_an_episode_without_its_reward_is_lost_and_never_worth_0() -> None:
    leases = Leases()
    subject = Player(leases, ScriptedEngine(), Words(), options(), Judge(leases, fails=True))
    trajectory = await subject.play("e", "g", TASKS[0])
    assert (trajectory.outcome, trajectory.cause) == (Outcome.INFRA_ERROR, "reward_error")
    assert not trajectory.success and leases.recycled == []


@pytest.mark.asyncio
async def test_what_was_lost_before_its_end_is_not_judged() -> None:
    leases = Leases(losing("e"))
    judge = Judge(leases)
    await Player(leases, ScriptedEngine(), Words(), options(), judge).play("e", "g", TASKS[0])
    assert judge.read == []
