"""The scheduler's invariants, under any order of finishing, failing and updating."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocknroll.envs.text import Task
from rocknroll.trainer.rollout.scheduler import Disposition, Episode, Scheduler
from rocknroll.trainer.rollout.staleness import Pacing
from rocknroll.trainer.rollout.tasks import TaskOrder
from rocknroll.trainer.trajectory import Group, Outcome, Trajectory, Turn

TASKS = [Task(id=f"t{i}", kind="k") for i in range(7)]


def played(episode: Episode, version: int, outcome: Outcome = Outcome.COMPLETED) -> Trajectory:
    """A trajectory of one action token, sampled at `version`."""
    return Trajectory(
        id=episode.id,
        group_id=f"g{episode.group}",
        task_id=episode.task.id,
        task_kind="k",
        token_ids=np.array([1, 2], dtype=np.int32),
        action_mask=np.array([False, True]),
        logprobs=np.zeros(2, dtype=np.float32),
        versions=np.array([-1, version], dtype=np.int32),
        turns=(Turn(1, 2, 1.0, True),),
        outcome=outcome,
        success=True,
    )


def make(num_groups: int = 2, group_size: int = 2, async_ratio: float = 0.0, retries: int = 1) -> Scheduler:
    return Scheduler(
        TaskOrder(TASKS, seed=3), Pacing(num_groups, async_ratio), group_size=group_size, infra_retries=retries
    )


def drain(scheduler: Scheduler) -> list[Episode]:
    return list(iter(scheduler.next_episode, None))


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_groups=st.integers(1, 4),
    group_size=st.integers(1, 3),
    async_ratio=st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0]),
    slots=st.integers(1, 24),
    failure_rate=st.sampled_from([0.0, 0.1, 0.4]),
)
def test_any_interleaving_keeps_staleness_groups_and_order_sound(
    seed: int, num_groups: int, group_size: int, async_ratio: float, slots: int, failure_rate: float
) -> None:
    chance = random.Random(seed)
    scheduler = make(num_groups, group_size, async_ratio, retries=2)
    playing: list[tuple[Episode, int]] = []
    trained: list[Group] = []
    version = batches = 0
    for _ in range(100_000):
        if batches == 6:
            break
        while len(playing) < slots and (episode := scheduler.next_episode()) is not None:
            playing.append((episode, version))
        batch = scheduler.take_batch()
        if batch is not None:
            assert len(batch) == num_groups
            for group in batch:
                assert len(group.trajectories) == group_size
                assert len({t.task_id for t in group.trajectories}) == 1
                assert all(version - t.oldest_version <= math.ceil(async_ratio) for t in group.trajectories)
            trained += batch
            version += 1
            batches += 1
            scheduler.on_version(version)
            continue
        assert playing, "nothing plays and no batch is ready: the scheduler is stuck"
        episode, started = playing.pop(chance.randrange(len(playing)))
        lost = chance.random() < failure_rate
        scheduler.finished(episode, played(episode, started, Outcome.INFRA_ERROR if lost else Outcome.COMPLETED))
        assert scheduler.counts()["open"] + scheduler.counts()["buffered"] <= (1 + async_ratio) * num_groups + 1e-9
    assert batches == 6
    assert len({g.id for g in trained}) == len(trained)
    counts = scheduler.counts()
    assert counts["admitted"] == counts["open"] + counts["buffered"] + counts["consumed"]


def test_synchronous_batches_start_only_after_the_update() -> None:
    scheduler = make(async_ratio=0.0)
    episodes = drain(scheduler)
    assert {e.group for e in episodes} == {0, 1}
    for episode in episodes:
        scheduler.finished(episode, played(episode, 0))
    assert scheduler.take_batch() is not None
    assert scheduler.next_episode() is None
    scheduler.on_version(1)
    assert {e.group for e in drain(scheduler)} == {2, 3}


def test_async_ratio_one_admits_one_more_batch() -> None:
    assert {e.group for e in drain(make(async_ratio=1.0))} == {0, 1, 2, 3}


def test_fractional_async_ratio_admits_part_of_a_batch() -> None:
    assert {e.group for e in drain(make(async_ratio=0.5))} == {0, 1, 2}


def test_a_group_that_would_grow_too_old_is_waited_for() -> None:
    scheduler = make(num_groups=1, group_size=1, async_ratio=1.0)
    slow, fast = drain(scheduler)
    scheduler.finished(fast, played(fast, 0))
    first = scheduler.take_batch()
    assert first is not None and first[0].id == "g1"
    scheduler.on_version(1)
    (newer,) = drain(scheduler)
    scheduler.finished(newer, played(newer, 1))
    assert scheduler.take_batch() is None, "g0 started at version 0 and is due now"
    scheduler.finished(slow, played(slow, 0))
    second = scheduler.take_batch()
    assert second is not None and second[0].id == "g0"


def test_a_lost_episode_is_played_again_before_others() -> None:
    scheduler = make(retries=1)
    first = scheduler.next_episode()
    assert first is not None
    assert scheduler.finished(first, played(first, 0, Outcome.INFRA_ERROR)) is Disposition.RETRIED
    again = scheduler.next_episode()
    assert again is not None and (again.group, again.member, again.attempt) == (first.group, first.member, 1)


def test_a_group_out_of_retries_is_dropped_and_replaced() -> None:
    scheduler = make(retries=0)
    episodes = drain(scheduler)
    doomed = episodes[0]
    assert scheduler.finished(doomed, played(doomed, 0, Outcome.INFRA_ERROR)) is Disposition.DROPPED
    assert {e.group for e in drain(scheduler)} == {2}
    late = episodes[1]
    assert scheduler.finished(late, played(late, 0)) is Disposition.IGNORED
    assert scheduler.counts()["dropped"] == 1


def test_a_resumed_scheduler_trains_no_group_twice_and_skips_none() -> None:
    scheduler = make(num_groups=1, group_size=1, async_ratio=2.0)
    episodes = drain(scheduler)
    scheduler.finished(episodes[1], played(episodes[1], 0))
    batch = scheduler.take_batch()
    assert batch is not None and batch[0].id == "g1"
    scheduler.on_version(1)
    resumed = make(num_groups=1, group_size=1, async_ratio=2.0)
    resumed.load_state_dict(scheduler.state_dict())
    assert [e.group for e in drain(resumed)] == [0, 2, 3]
    assert resumed.version == 1


def test_task_order_is_a_function_of_seed_and_index() -> None:
    order, same, other = TaskOrder(TASKS, 5), TaskOrder(TASKS, 5), TaskOrder(TASKS, 6)
    first = [order[i].id for i in range(21)]
    assert first == [same[i].id for i in range(21)] != [other[i].id for i in range(21)]
    for epoch in range(3):
        assert sorted(first[7 * epoch : 7 * epoch + 7]) == sorted(t.id for t in TASKS)


def test_every_visit_of_a_task_has_a_disguise_of_its_own_that_a_resumed_run_repeats() -> None:
    def disguise(task: Task, seed: int) -> Task:
        return replace(task, options={"seed": seed})

    order, same, other = (TaskOrder(TASKS, seed, disguise) for seed in (5, 5, 6))
    seeds = [order[i].options["seed"] for i in range(21)]
    assert len(set(seeds)) == 21
    assert seeds == [same[i].options["seed"] for i in range(21)]
    assert not set(seeds) & {other[i].options["seed"] for i in range(21)}
    assert [order[i].id for i in range(21)] == [TaskOrder(TASKS, 5)[i].id for i in range(21)]


@pytest.mark.parametrize("ratio", [-0.1, math.nan, math.inf])
def test_an_impossible_async_ratio_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match="async_ratio"):
        Pacing(1, ratio)
