"""The loop around the scheduler: slots, cancellations, evaluations, failures, and what the journal is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from scripted import PATIENCE_S, TASKS, Leases, ScriptedEngine, Words, hanging, losing, options, until

from rocknroll.envs.text import Task
from rocknroll.sandbox.errors import FleetExhausted, SandboxLost
from rocknroll.trainer.rollout.episode import Player
from rocknroll.trainer.rollout.evaluation import LOST_IN_A_ROW
from rocknroll.trainer.rollout.events import Aborted, BatchTaken, Episode, Event, Failed, Kept, Started, Surplus, Why
from rocknroll.trainer.rollout.faults import FAILURE_WINDOW, FailureWindow
from rocknroll.trainer.rollout.ledger_file import LedgerError
from rocknroll.trainer.rollout.loop import RolloutFailed, RolloutLoop
from rocknroll.trainer.rollout.scheduler import Batch, Scheduler, SchedulerOptions
from rocknroll.trainer.rollout.tasks import TaskOrder
from rocknroll.trainer.trajectory import Group, Trajectory


class Diary:
    """A journal that remembers."""

    def __init__(self, full_after: int = 10**9) -> None:
        self.events: list[Event] = []
        self.states: list[Mapping[str, Any]] = []
        self._full_after = full_after

    def record(self, events: Sequence[Event], state: Mapping[str, Any]) -> None:
        if len(self.events) >= self._full_after:
            raise LedgerError("no space left on device")
        self.events += events
        self.states.append(state)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


class Script:
    """A scheduler that starts the episodes it was given, and whose events the test writes."""

    def __init__(self, members: int) -> None:
        self.waiting = [Episode(0, member, 0, TASKS[0]) for member in range(members)]
        self.events: list[Event] = []
        self.ended: list[str] = []
        self.aborted: set[str] = set()
        self.batches_taken = 0
        self.version = 0

    def on_version(self, version: int) -> None:
        self.version = version

    def next_episode(self) -> Episode | None:
        if not self.waiting:
            return None
        episode = self.waiting.pop(0)
        self.events.append(Started(episode, self.version))
        return episode

    def finished(self, episode: Episode, trajectory: Trajectory) -> None:
        self.ended.append(episode.id)
        surplus = episode.id in self.aborted
        self.events.append(Surplus(episode) if surplus else Kept(episode, trajectory))

    def abort(self, episode: Episode) -> None:
        self.aborted.add(episode.id)
        self.events.append(Aborted(episode, Why.REDUNDANT))

    def take_batch(self) -> Batch | None:
        return None

    def ready_groups(self) -> tuple[Group, ...]:
        return ()

    def drain(self) -> list[Event]:
        events, self.events = self.events, []
        return events

    def state_dict(self) -> dict[str, Any]:
        return {"ended": list(self.ended)}


def make_loop(scheduler: Any, leases: Leases, *, concurrency: int = 4, **settings: Any) -> RolloutLoop:
    player = Player(leases, ScriptedEngine(), Words(), options())
    settings = {"failures": FailureWindow(0.5)} | settings
    return RolloutLoop(scheduler, player, concurrency=concurrency, seed=0, **settings)


def make_scheduler(**changes: Any) -> Scheduler:
    return Scheduler(TaskOrder(TASKS, 0), SchedulerOptions(**({"num_groups": 2, "group_size": 2} | changes)))


@asynccontextmanager
async def playing(loop: RolloutLoop) -> AsyncIterator[RolloutLoop]:
    async with asyncio.timeout(PATIENCE_S):
        await loop.start()
        try:
            yield loop
        finally:
            await loop.stop()


@pytest.mark.asyncio
async def test_a_lost_episode_costs_itself_and_the_batch_still_comes() -> None:
    leases, diary = Leases(losing("g0.1.0")), Diary()
    async with playing(make_loop(make_scheduler(), leases, journal=diary)) as loop:
        batch = await loop.next_batch(0)
    assert {group.id for group in batch.groups} == {"g0", "g1"}
    assert loop.outcomes == {"completed": 4, "infra_error": 1, "infra_error/sandbox_lost": 1, "retried": 1}
    assert loop.lost == {"sandbox_lost": 1}
    assert leases.open == 0
    (failed,) = diary.of(Failed)
    assert failed.episode.id == "g0.1.0" and failed.trajectory.error == "SandboxLost: killed"


@pytest.mark.asyncio
async def test_the_journal_knows_of_a_batch_before_its_caller_does() -> None:
    diary = Diary()
    async with playing(make_loop(make_scheduler(), Leases(), journal=diary)) as loop:
        batch = await loop.next_batch(0)
        (taken,) = diary.of(BatchTaken)
    assert batch.index == taken.batch == 0
    members = [tuple(t.id for t in group.trajectories) for group in batch.groups]
    assert list(taken.episodes) == members
    assert len(diary.of(Kept)) == len(diary.of(Started)) == 4
    assert diary.states, "every record has the state behind its events"


@pytest.mark.asyncio
async def test_an_episode_is_written_down_before_it_plays() -> None:
    diary = Diary()
    unknown = []

    def ask(owner: str) -> None:
        if owner not in {event.episode.id for event in diary.of(Started)}:
            unknown.append(owner)

    async with playing(make_loop(make_scheduler(), Leases(ask=ask), journal=diary)) as loop:
        await loop.next_batch(0)
    assert unknown == []


@pytest.mark.asyncio
async def test_a_batch_that_is_not_the_next_one_is_refused() -> None:
    async with playing(make_loop(make_scheduler(), Leases())) as loop:
        with pytest.raises(ValueError, match="batch 1 was asked for, and the next one is 0"):
            await loop.next_batch(1)


@pytest.mark.asyncio
async def test_groups_of_a_batch_can_be_had_one_by_one_as_they_are_complete() -> None:
    leases = Leases(hanging("g1.0.0", "g1.1.0"))
    async with playing(make_loop(make_scheduler(), leases)) as loop:
        (first,) = await loop.ready_groups(0, seen=0)
        more = asyncio.create_task(loop.ready_groups(0, seen=1))
        await until(lambda: leases.open == 2)
    assert first.id == "g0" and not more.done()
    more.cancel()


@pytest.mark.asyncio
async def test_new_weights_let_the_next_episodes_start() -> None:
    leases = Leases()
    async with playing(make_loop(make_scheduler(), leases)) as loop:
        await loop.next_batch(0)
        assert len(leases.owners) == 4
        await loop.on_version(1)
        assert (await loop.next_batch(1)).index == 1


@pytest.mark.asyncio
async def test_an_aborted_episode_is_stopped_at_once_and_its_slot_is_free() -> None:
    script, diary = Script(members=3), Diary()
    hung, other, third = script.waiting
    leases = Leases(hanging(hung.id))
    async with playing(make_loop(script, leases, concurrency=1, journal=diary)) as loop:
        await loop.train()
        await until(lambda: leases.owners == [hung.id])
        script.abort(hung)
        await loop.on_version(1)
        await until(lambda: script.ended == [other.id, third.id])
    assert leases.recycled == [hung.id]
    assert loop.outcomes["aborted"] == loop.outcomes["aborted/redundant"] == 1
    assert not diary.of(Surplus), "a cancelled episode brings no trajectory"


@pytest.mark.asyncio
async def test_a_trajectory_that_comes_after_its_abort_is_surplus() -> None:
    class Deaf:
        """Plays on when it is cancelled."""

        async def play(self, episode_id: str, group_id: str, task: Task, **settings: Any) -> Trajectory:
            player = Player(Leases(), ScriptedEngine(), Words(), options())
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return await player.play(episode_id, group_id, task)
            raise AssertionError("never")

    script, diary = Script(members=1), Diary()
    (episode,) = script.waiting
    loop = RolloutLoop(
        script,
        Deaf(),
        concurrency=1,
        seed=0,
        failures=FailureWindow(0.5),
        journal=diary,  # type: ignore[arg-type]
    )
    async with playing(loop):
        await loop.train()
        await until(lambda: bool(diary.of(Started)))
        await asyncio.sleep(0)
        script.abort(episode)
        await loop.on_version(1)
        await until(lambda: bool(diary.of(Surplus)))
    assert loop.outcomes["surplus"] == 1


@pytest.mark.asyncio
async def test_a_slot_is_free_while_nothing_but_the_reward_is_missing() -> None:
    scored = asyncio.Event()

    class Scoring:
        async def play(self, episode_id: str, group_id: str, task: Task, **settings: Any) -> Trajectory:
            trajectory = await Player(Leases(), ScriptedEngine(), Words(), options()).play(episode_id, group_id, task)
            settings["leave"]()
            await scored.wait()
            return trajectory

    script = Script(members=3)
    loop = RolloutLoop(
        script,
        Scoring(),
        concurrency=1,
        seed=0,
        failures=FailureWindow(0.5),  # type: ignore[arg-type]
    )
    async with playing(loop):
        await loop.train()
        await until(lambda: not script.waiting)
        assert script.ended == []
        scored.set()
        await until(lambda: len(script.ended) == 3)


@pytest.mark.asyncio
async def test_slots_are_busy_only_while_they_play() -> None:
    async with playing(make_loop(make_scheduler(), Leases())) as loop:
        await loop.evaluate(TASKS, 0.0)
        busy_s = loop.slot_busy_s()
        assert busy_s > 0
        await asyncio.sleep(0.02)
        assert loop.slot_busy_s() == busy_s, "no episode plays any more"


@pytest.mark.asyncio
async def test_no_more_episodes_play_at_once_than_there_are_slots() -> None:
    leases = Leases()
    most = 0

    def count(owner: str, step: int) -> None:
        nonlocal most
        most = max(most, leases.open)

    leases = Leases(count)
    async with playing(make_loop(make_scheduler(num_groups=4), leases, concurrency=3)) as loop:
        await loop.next_batch(0)
    assert most == 3


@pytest.mark.asyncio
async def test_a_run_stops_when_nearly_everything_is_lost_and_says_why() -> None:
    async with playing(make_loop(make_scheduler(infra_retries=1000), Leases(losing()))) as loop:
        with pytest.raises(RolloutFailed, match=r"max_infra_error_rate=0\.5 .*64 × sandbox_lost.*SandboxLost: killed"):
            await loop.next_batch(0)


@pytest.mark.asyncio
async def test_a_run_that_accepts_losses_goes_on_through_them() -> None:
    lost = 0

    def at_step(owner: str, step: int) -> None:
        nonlocal lost
        if lost < 2 * FAILURE_WINDOW:
            lost += 1
            raise SandboxLost("killed")

    loop = make_loop(make_scheduler(infra_retries=1000), Leases(at_step), failures=FailureWindow(1.0))
    async with playing(loop):
        assert len((await loop.next_batch(0)).groups) == 2


@pytest.mark.asyncio
async def test_a_fault_of_this_program_stops_the_run_with_its_traceback() -> None:
    def at_step(owner: str, step: int) -> None:
        raise KeyError("a bug of ours")

    async with playing(make_loop(make_scheduler(), Leases(at_step))) as loop:
        with pytest.raises(RolloutFailed, match=r"(?s)Traceback.*at_step.*KeyError: 'a bug of ours'"):
            await loop.next_batch(0)


@pytest.mark.asyncio
async def test_a_fleet_in_which_nothing_can_start_stops_the_run_whatever_rate_it_accepts() -> None:
    def ask(owner: str) -> None:
        raise FleetExhausted("no sandbox of 'alfworld' can start: no room")

    async with playing(make_loop(make_scheduler(), Leases(ask=ask), failures=FailureWindow(1.0))) as loop:
        with pytest.raises(RolloutFailed, match=r"^FleetExhausted: no sandbox of 'alfworld' can start: no room$"):
            await loop.next_batch(0)


@pytest.mark.asyncio
async def test_what_cannot_be_written_down_is_not_trained_on() -> None:
    async with playing(make_loop(make_scheduler(), Leases(), journal=Diary(full_after=6))) as loop:
        with pytest.raises(LedgerError, match="no space left"):
            await loop.next_batch(0)


@pytest.mark.asyncio
async def test_training_waits_while_an_evaluation_begins_and_a_loss_is_played_again() -> None:
    leases = Leases(losing("eval1.2.0"))
    loop = make_loop(make_scheduler(), leases)
    await loop.train()
    evaluation = asyncio.create_task(loop.evaluate(TASKS, 0.0))
    await asyncio.sleep(0)
    async with playing(loop):
        trajectories = await evaluation
    assert all(owner.startswith("eval1.") for owner in leases.owners[: len(TASKS)])
    assert [t.task_id for t in trajectories] == [t.id for t in TASKS]
    assert trajectories[2].id == "eval1.2.1"
    assert all(t.success for t in trajectories)


@pytest.mark.asyncio
async def test_slots_that_an_evaluation_has_no_task_for_play_on_for_training() -> None:
    leases = Leases(hanging("eval1.0.0"))
    async with playing(make_loop(make_scheduler(), leases)) as loop:
        evaluation = asyncio.create_task(loop.evaluate(TASKS, 0.0))
        assert len((await loop.next_batch(0)).groups) == 2
        assert not evaluation.done()
        evaluation.cancel()


@pytest.mark.asyncio
async def test_evaluation_results_come_in_task_order() -> None:
    heard: list[int] = []
    async with playing(make_loop(make_scheduler(), Leases(), concurrency=3)) as loop:
        trajectories = await loop.evaluate(TASKS, 0.0, heard.append)
        again = await loop.evaluate(TASKS[:2], 0.0)
    assert [t.task_id for t in trajectories] == [t.id for t in TASKS]
    assert [t.id for t in again] == ["eval2.0.0", "eval2.1.0"]
    assert heard[-1] == len(TASKS)


@pytest.mark.asyncio
async def test_two_evaluations_at_once_get_their_own_results() -> None:
    async with playing(make_loop(make_scheduler(), Leases(), concurrency=2)) as loop:
        first, second = await asyncio.gather(loop.evaluate(TASKS, 0.0), loop.evaluate(TASKS[::-1], 0.0))
    assert [t.task_id for t in first] == [t.task_id for t in second][::-1] == [t.id for t in TASKS]


@pytest.mark.asyncio
async def test_evaluation_episodes_are_spread_over_the_engines() -> None:
    engine = ScriptedEngine()
    player = Player(Leases(), engine, Words(), options())
    loop = RolloutLoop(make_scheduler(), player, concurrency=2, seed=0, failures=FailureWindow(0.5), engines=2)
    async with playing(loop):
        await loop.evaluate(TASKS, 0.0)
    assert {(request.trajectory_id, request.engine) for request in engine.requests} == {
        (f"eval1.{i}.0", i % 2) for i in range(len(TASKS))
    }


@pytest.mark.asyncio
async def test_an_evaluation_with_a_task_that_is_always_lost_ends() -> None:
    def at_step(owner: str, step: int) -> None:
        if owner.startswith("eval1.3."):
            raise SandboxLost("killed")

    leases = Leases(at_step)
    async with playing(make_loop(make_scheduler(), leases, failures=FailureWindow(1.0))) as loop:
        with pytest.raises(RolloutFailed, match=r"the task t3 .* lost 64 times in a row.*SandboxLost: killed"):
            await loop.evaluate(TASKS, 0.0)
        assert len(await loop.evaluate(TASKS[:2], 0.0)) == 2, "the loop itself goes on"
    assert sum(owner.startswith("eval1.3.") for owner in leases.owners) == LOST_IN_A_ROW
