"""What a scheduler that was restored from its state knows, and what it waits for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scheduling import finish, groups_of, lose, make, of_group, played, start_all, taken

from rocknroll.trainer.rollout.events import Kept
from rocknroll.trainer.rollout.scheduler import Scheduler
from rocknroll.trainer.trajectory import Trajectory


def restored(scheduler: Scheduler, *options: Any, **named: Any) -> Scheduler:
    """A new process, with the state and the kept trajectories of `scheduler`, which has not been drained."""
    kept = {event.episode.id: event.trajectory for event in scheduler.drain() if isinstance(event, Kept)}
    again = make(*options, **named)
    again.load_state_dict(json.loads(json.dumps(scheduler.state_dict())), kept)
    return again


def test_what_was_being_played_is_played_again_under_the_same_id() -> None:
    scheduler = make(1, 3)
    first, second = scheduler.next_episode(), scheduler.next_episode()
    assert first is not None and second is not None
    lose(scheduler, first)
    again = scheduler.next_episode()
    assert again is not None and again.id == "g0.0.1"
    finish(scheduler, [second])
    assert [episode.id for episode in start_all(restored(scheduler, 1, 3))] == ["g0.0.1", "g0.2.0"]


def test_a_kept_trajectory_is_neither_lost_nor_played_twice() -> None:
    scheduler = make(1, 2)
    first, second = start_all(scheduler)
    finish(scheduler, [second])
    again = restored(scheduler, 1, 2)
    assert start_all(again) == [first]
    finish(again, [first])
    batch = again.take_batch()
    assert batch is not None
    assert [t.id for t in batch.groups[0].trajectories] == ["g0.0.0", "g0.1.0"]


def test_no_group_is_trained_on_twice_and_none_is_skipped() -> None:
    scheduler = make(1, 1, 2.0)
    finish(scheduler, start_all(scheduler)[1:2])
    assert taken(scheduler) == ["g1"]
    scheduler.on_version(1)
    again = restored(scheduler, 1, 1, 2.0)
    assert groups_of(start_all(again)) == [0, 2, 3]
    assert again.version == 1 and again.batches_taken == 1


def test_losses_are_remembered() -> None:
    options = {"extra_groups": 1, "max_requeues": 1}
    scheduler = make(1, 1, **options)
    finish(scheduler, of_group(start_all(scheduler), 1))
    taken(scheduler)
    scheduler.on_version(1)
    again = restored(scheduler, 1, 1, **options)
    assert [episode.id for episode in start_all(again)] == ["g0.0.1"], "it has lost once: its place is reserved"
    assert again.counts()["requeued"] == 1


def test_how_many_groups_were_set_aside_for_the_batch_is_remembered() -> None:
    scheduler = make(1, 2, max_filtered=1)
    for episode in start_all(scheduler):
        scheduler.finished(episode, played(episode, 0, reward=0.0))
    again = restored(scheduler, 1, 2, max_filtered=1)
    for episode in start_all(again):
        again.finished(episode, played(episode, 0, reward=0.0))
    assert taken(again) == ["g1"]


def test_the_kind_of_the_round_is_remembered() -> None:
    options = {"extra_groups": 1, "tail_batching": True}
    scheduler = make(1, 1, **options)
    finish(scheduler, start_all(scheduler)[1:])
    taken(scheduler)
    scheduler.on_version(1)
    again = restored(scheduler, 1, 1, **options)
    episodes = start_all(again)
    assert groups_of(episodes) == [0]
    finish(again, episodes, 1)
    batch = again.take_batch()
    assert batch is not None and batch.groups[0].round_kind == "long"


@pytest.mark.parametrize(("ratio", "catches_up_at"), [(0.0, 3), (1.0, 2), (2.0, 2)])
def test_nothing_starts_while_the_learner_trains_on_stored_batches_again(ratio: float, catches_up_at: int) -> None:
    scheduler = make(1, 2, ratio)
    for version in range(3):
        scheduler.on_version(version)
        while scheduler.take_batch() is None:
            finish(scheduler, [e for e in [scheduler.next_episode()] if e], version)
    again = restored(scheduler, 1, 2, ratio)
    again.on_version(0)
    for version in range(1, 4):
        assert again.next_episode() is None
        again.on_version(version)
        if version == catches_up_at:
            break
    assert again.version == catches_up_at and start_all(again)


def test_nothing_starts_before_the_version_that_was_reached_is_there_again() -> None:
    scheduler = make(1, 1, 1.0)
    finish(scheduler, start_all(scheduler)[:1])
    taken(scheduler)
    scheduler.on_version(1)
    once = restored(scheduler, 1, 1, 1.0)
    once.on_version(0)
    again = restored(once, 1, 1, 1.0)
    assert again.next_episode() is None, "g2 was admitted to start at version 1, and would be too old with version 0"
    again.on_version(1)
    assert groups_of(start_all(again)) == [1, 2]


def test_the_version_goes_back_only_once_after_a_restore() -> None:
    scheduler = make(1, 1)
    finish(scheduler, start_all(scheduler))
    taken(scheduler)
    scheduler.on_version(1)
    again = restored(scheduler, 1, 1)
    again.on_version(0)
    again.on_version(1)
    with pytest.raises(ValueError, match="went back"):
        again.on_version(0)


def test_a_state_without_its_trajectories_is_refused() -> None:
    scheduler = make(1, 2)
    finish(scheduler, start_all(scheduler)[:1])
    none: dict[str, Trajectory] = {}
    with pytest.raises(ValueError, match=r"g0\.0\.0 was kept.*ledger"):
        make(1, 2).load_state_dict(scheduler.state_dict(), none)
