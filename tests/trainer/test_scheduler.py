"""What the scheduler starts, keeps and hands out, one behaviour at a time."""

from __future__ import annotations

from typing import Any

import pytest
from scheduling import finish, groups_of, lose, make, of_group, played, start_all, taken

from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.rollout.events import (
    Aborted,
    Episode,
    Failed,
    GroupDropped,
    GroupFiltered,
    Kept,
    Started,
    Why,
)
from rocknroll.trainer.rollout.scheduler import Scheduler, SchedulerOptions
from rocknroll.trainer.trajectory import Outcome


def test_synchronous_batches_start_only_after_the_update() -> None:
    scheduler = make()
    episodes = start_all(scheduler)
    assert groups_of(episodes) == [0, 1]
    finish(scheduler, episodes)
    assert scheduler.take_batch() is not None
    assert scheduler.next_episode() is None
    scheduler.on_version(1)
    assert groups_of(start_all(scheduler)) == [2, 3]


@pytest.mark.parametrize(("ratio", "admitted"), [(0.0, 2), (0.4, 2), (0.5, 3), (1.0, 4), (2.0, 6)])
def test_the_async_ratio_says_how_many_groups_are_admitted_ahead(ratio: float, admitted: int) -> None:
    assert groups_of(start_all(make(async_ratio=ratio))) == list(range(admitted))


def test_a_batch_holds_its_groups_in_the_order_of_age_whatever_finished_first() -> None:
    scheduler = make(num_groups=3)
    finish(scheduler, reversed(start_all(scheduler)))
    assert taken(scheduler) == ["g0", "g1", "g2"]


def test_by_default_a_group_that_would_grow_too_old_is_waited_for() -> None:
    scheduler = make(num_groups=1, group_size=1, async_ratio=1.0)
    slow, fast = start_all(scheduler)
    finish(scheduler, [fast])
    assert taken(scheduler) == ["g1"]
    scheduler.on_version(1)
    finish(scheduler, start_all(scheduler), version=1)
    assert scheduler.take_batch() is None, "g0 started at version 0 and is due now"
    finish(scheduler, [slow])
    assert taken(scheduler) == ["g0"]


def test_an_asynchronous_run_starts_what_it_admitted_while_the_learner_trains() -> None:
    scheduler = make(num_groups=1, async_ratio=1.0)
    first, second, third = (scheduler.next_episode() for _ in range(3))
    assert first is not None and second is not None and third is not None
    finish(scheduler, [first, second])
    assert taken(scheduler) == ["g0"]
    assert [episode.id for episode in start_all(scheduler)] == ["g1.1.0"]


def test_a_batch_carries_the_version_that_trains_on_it() -> None:
    scheduler = make(async_ratio=1.0)
    finish(scheduler, start_all(scheduler))
    first, second = scheduler.take_batch(), scheduler.take_batch()
    assert first is not None and first.index == 0
    assert second is not None and second.index == 1, "taken before version 1 is there, but trained on by it"
    assert scheduler.batches_taken == 2 and scheduler.version == 0


def test_nothing_starts_that_no_batch_of_the_run_can_take() -> None:
    scheduler = make(num_groups=2, group_size=1, async_ratio=2.0, last_batch=1)
    episodes = start_all(scheduler)
    assert groups_of(episodes) == [0, 1, 2, 3]
    finish(scheduler, episodes)
    assert [len(taken(scheduler)), len(taken(scheduler))] == [2, 2]
    scheduler.on_version(2)
    assert scheduler.next_episode() is None


def test_what_races_for_the_last_places_of_a_run_is_cut_off_when_they_are_taken() -> None:
    scheduler = make(num_groups=1, group_size=1, async_ratio=2.0, extra_groups=1, max_requeues=1, last_batch=0)
    first, second = start_all(scheduler)
    finish(scheduler, [second])
    assert Aborted(first, Why.REDUNDANT) in scheduler.drain()


def test_a_lost_episode_is_played_again_before_others() -> None:
    scheduler = make(infra_retries=1)
    first = scheduler.next_episode()
    assert first is not None
    lose(scheduler, first)
    assert [(type(e), getattr(e, "retried", None)) for e in scheduler.drain()] == [(Started, None), (Failed, True)]
    again = scheduler.next_episode()
    assert again is not None and again.id == "g0.0.1"


def test_a_group_out_of_retries_is_dropped_and_replaced() -> None:
    scheduler = make(infra_retries=1)
    episodes = start_all(scheduler)
    finish(scheduler, episodes[1:2])
    lose(scheduler, episodes[0])
    again = scheduler.next_episode()
    assert again is not None
    scheduler.drain()
    lose(scheduler, again)
    failed, dropped = scheduler.drain()
    assert isinstance(failed, Failed) and not failed.retried
    assert dropped == GroupDropped(0, ("g0.1.0",))
    assert groups_of(start_all(scheduler)) == [2]


def test_the_other_members_of_a_dropped_group_are_cut_off() -> None:
    scheduler = make(infra_retries=0)
    doomed, other, *_ = start_all(scheduler)
    lose(scheduler, doomed)
    assert scheduler.drain()[-2:] == [Aborted(other, Why.DROPPED), GroupDropped(0, ())]


def test_a_spare_member_makes_up_for_a_lost_one() -> None:
    scheduler = make(num_groups=1, group_size=2, extra_members=1)
    first, second, third = start_all(scheduler)
    lose(scheduler, first)
    assert scheduler.next_episode() is None, "two are still under way, and two are needed"
    finish(scheduler, [second, third])
    assert taken(scheduler) == ["g0"]


def test_an_episode_that_the_shell_cut_off_is_played_again_at_no_cost() -> None:
    scheduler = make(num_groups=1, group_size=1, infra_retries=0)
    (episode,) = start_all(scheduler)
    scheduler.finished(episode, played(episode, 0, Outcome.ABORTED))
    assert scheduler.drain()[-1] == Aborted(episode, Why.INTERRUPTED)
    assert [e.id for e in start_all(scheduler)] == ["g0.0.1"]


def flat(scheduler: Scheduler, episodes: list[Episode]) -> None:
    for episode in episodes:
        scheduler.finished(episode, played(episode, scheduler.version, reward=1.0))


def test_a_flat_group_is_set_aside_and_replaced() -> None:
    scheduler = make(num_groups=1, max_filtered=2)
    flat(scheduler, start_all(scheduler))
    assert scheduler.drain()[-1] == GroupFiltered(0, ("g0.0.0", "g0.1.0"))
    assert scheduler.take_batch() is None
    finish(scheduler, start_all(scheduler))
    assert taken(scheduler) == ["g1"]


def test_flat_groups_are_kept_once_enough_were_set_aside_for_this_batch() -> None:
    scheduler = make(num_groups=1, max_filtered=1)
    for version in range(2):
        scheduler.on_version(version)
        flat(scheduler, start_all(scheduler))
        flat(scheduler, start_all(scheduler))
        assert taken(scheduler) == [f"g{2 * version + 1}"]
    assert scheduler.counts()["filtered"] == 2


def test_groups_of_a_synchronous_batch_are_ready_in_the_order_in_which_they_complete() -> None:
    scheduler = make(num_groups=3)
    episodes = start_all(scheduler)
    finish(scheduler, of_group(episodes, 2))
    finish(scheduler, of_group(episodes, 0))
    assert [group.id for group in scheduler.ready_groups()] == ["g2", "g0"]
    finish(scheduler, of_group(episodes, 1))
    assert taken(scheduler) == ["g0", "g1", "g2"]
    assert scheduler.ready_groups() == ()


def test_an_asynchronous_run_hands_no_group_out_before_its_batch() -> None:
    with pytest.raises(ValueError, match="synchronous"):
        make(async_ratio=0.5).ready_groups()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"async_ratio": -0.5}, "async_ratio"),
        ({"async_ratio": float("nan")}, "async_ratio"),
        ({"async_ratio": float("inf")}, "async_ratio"),
        ({"num_groups": 0}, "num_groups is 0"),
        ({"group_size": 0}, "group_size is 0"),
        ({"extra_members": -1}, "extra_members is -1"),
        ({"extra_groups": 1}, "max_requeues is 0"),
        ({"tail_batching": True, "async_ratio": 1.0}, "synchronous"),
        ({"max_filtered": 1, "group_size": 1}, "group_size is 1"),
        ({"engines": 0}, "engines is 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        SchedulerOptions(**{"num_groups": 2, "group_size": 2} | options)


def test_a_version_neither_goes_back_nor_runs_ahead_of_the_batches() -> None:
    scheduler = make(num_groups=1)
    with pytest.raises(ValueError, match="cannot exist"):
        scheduler.on_version(1)
    finish(scheduler, start_all(scheduler))
    taken(scheduler)
    scheduler.on_version(1)
    with pytest.raises(ValueError, match="went back"):
        scheduler.on_version(0)


def test_every_start_is_told_with_its_version() -> None:
    scheduler = make(num_groups=1, group_size=1)
    (episode,) = start_all(scheduler)
    finish(scheduler, [episode])
    assert [type(event) for event in scheduler.drain()] == [Started, Kept]
    taken(scheduler)
    scheduler.on_version(1)
    start_all(scheduler)
    (_, started) = scheduler.drain()
    assert isinstance(started, Started) and started.version == 1


@pytest.mark.parametrize(
    ("eta", "wanted", "spare"), [(1.25, 16, 4), (1.25, 8, 2), (1.1, 10, 1), (1.25, 6, 2), (1.0, 7, 0)]
)
def test_a_short_round_launches_no_more_than_eta_asks_for(eta: float, wanted: int, spare: int) -> None:
    tail = {"enabled": True, "eta": eta}
    recipe = Recipe.model_validate({"rollout": {"async_ratio": 0, "num_groups": wanted, "tail_batching": tail}})
    assert SchedulerOptions.of(recipe).extra_groups == spare
