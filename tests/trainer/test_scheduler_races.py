"""Who loses a race, when, and what becomes of the losers; spare members and tail batching among them."""

from __future__ import annotations

from typing import Any

from scheduling import finish, groups_of, lose, make, of_group, start_all, taken

from rocknroll.trainer.rollout.events import (
    Aborted,
    BatchTaken,
    GroupRequeued,
    Surplus,
    Why,
)
from rocknroll.trainer.rollout.scheduler import Scheduler


def test_the_losers_of_a_synchronous_race_are_cut_off_when_the_batch_is_full() -> None:
    scheduler = make(num_groups=1, extra_groups=1, max_requeues=1)
    episodes = start_all(scheduler)
    loser, *winners = of_group(episodes, 0)[1:] + of_group(episodes, 1)
    finish(scheduler, of_group(episodes, 0)[:1] + winners[:1])
    scheduler.drain()
    finish(scheduler, winners[1:])
    assert scheduler.drain()[1:] == [
        Aborted(loser, Why.REDUNDANT),
        GroupRequeued(0, Why.REDUNDANT, ("g0.0.0",)),
    ]
    assert scheduler.counts()["playing"] == 0
    assert scheduler.next_episode() is None, "no place is left to race for"
    assert taken(scheduler) == ["g1"]


def test_a_loser_is_played_again_before_new_groups_in_new_attempts() -> None:
    scheduler = make(num_groups=1, extra_groups=1, max_requeues=1)
    finish(scheduler, of_group(start_all(scheduler), 1))
    taken(scheduler)
    scheduler.on_version(1)
    assert [e.id for e in start_all(scheduler)] == ["g0.0.1", "g0.1.1"]


def test_a_group_that_has_lost_often_enough_has_its_place_reserved() -> None:
    scheduler = make(num_groups=1, extra_groups=1, max_requeues=1)
    finish(scheduler, of_group(start_all(scheduler), 1))
    taken(scheduler)
    scheduler.on_version(1)
    again = start_all(scheduler)
    assert groups_of(again) == [0], "the batch has one place and it is reserved: nobody races for it"
    assert scheduler.take_batch() is None
    finish(scheduler, again, version=1)
    assert taken(scheduler) == ["g0"]


def test_a_group_gets_its_reserved_place_when_one_is_free_and_pushes_nobody_out() -> None:
    scheduler = make(num_groups=1, group_size=1, async_ratio=1.0, extra_groups=3, max_requeues=1, infra_retries=0)
    started = start_all(scheduler)
    finish(scheduler, started[1:2])
    taken(scheduler)
    scheduler.on_version(1)
    lose(scheduler, started[2])
    newer, newest = start_all(scheduler)
    finish(scheduler, [newest], version=1)
    assert taken(scheduler) == ["g6"]
    scheduler.on_version(2)
    (again,) = start_all(scheduler)
    assert again.id == "g0.0.1" and scheduler.counts()["waiting"] == 2, "g5 holds the second of the two places"
    finish(scheduler, [newer], version=1)
    finish(scheduler, [again], version=2)
    assert taken(scheduler) == ["g5"]
    scheduler.on_version(3)
    assert [episode.id for episode in start_all(scheduler)] == ["g3.0.1"]


def test_a_group_loses_as_soon_as_it_cannot_be_trained_on_in_time() -> None:
    scheduler = make(num_groups=1, group_size=1, async_ratio=1.0, extra_groups=1, max_requeues=1)
    slow, second, third = start_all(scheduler)
    finish(scheduler, [second])
    assert not any(isinstance(event, GroupRequeued) for event in scheduler.drain())
    finish(scheduler, [third])
    assert scheduler.drain()[1:] == [Aborted(slow, Why.REDUNDANT), GroupRequeued(0, Why.REDUNDANT, ())], (
        "the batches 0 and 1 are full, and it is due at 1"
    )


def test_a_group_that_grew_old_loses_while_a_fresher_one_goes_on() -> None:
    scheduler = make(num_groups=1, group_size=1, async_ratio=1.0, extra_groups=1, max_requeues=1)
    slow, second, third = start_all(scheduler)
    finish(scheduler, [second])
    assert taken(scheduler) == ["g1"]
    scheduler.on_version(1)
    (fresh,) = start_all(scheduler)
    scheduler.drain()
    finish(scheduler, [third])
    assert scheduler.drain()[1:] == [Aborted(slow, Why.STALE), GroupRequeued(0, Why.STALE, ())]
    finish(scheduler, [fresh], version=1)
    assert taken(scheduler) == ["g2"]
    scheduler.on_version(2)
    assert taken(scheduler) == ["g3"], "it was due at 2"


def test_what_was_complete_is_never_thrown_away_for_its_age() -> None:
    scheduler = make(num_groups=1, group_size=1, async_ratio=2.0, extra_groups=3, max_requeues=1)
    finish(scheduler, start_all(scheduler)[:3])
    for version in (1, 2):
        taken(scheduler)
        scheduler.on_version(version)
    assert taken(scheduler) == ["g2"]


def test_an_engine_that_lags_behind_cannot_push_staleness_over_the_bound() -> None:
    scheduler = make(num_groups=1, group_size=2)
    finish(scheduler, start_all(scheduler))
    taken(scheduler)
    scheduler.on_version(1)
    first, second = start_all(scheduler)
    finish(scheduler, [first], version=1)
    finish(scheduler, [second], version=0)
    assert scheduler.take_batch() is None, "a group is as old as its oldest token"
    assert scheduler.drain()[-1] == GroupRequeued(1, Why.STALE, ("g1.0.0", "g1.1.0"))
    finish(scheduler, start_all(scheduler), version=1)
    assert taken(scheduler) == ["g1"]


def test_a_group_is_complete_at_its_last_needed_finisher_and_cuts_off_the_rest() -> None:
    scheduler = make(num_groups=1, group_size=2, extra_members=2)
    first, second, third, fourth = start_all(scheduler)
    finish(scheduler, [fourth])
    scheduler.drain()
    finish(scheduler, [second])
    assert scheduler.drain()[1:] == [Aborted(first, Why.REDUNDANT), Aborted(third, Why.REDUNDANT)]
    batch = scheduler.take_batch()
    assert batch is not None
    assert [t.id for t in batch.groups[0].trajectories] == ["g0.1.0", "g0.3.0"]


def test_a_spare_member_that_did_not_start_yet_never_does() -> None:
    scheduler = make(num_groups=1, group_size=1, extra_members=1)
    first = scheduler.next_episode()
    assert first is not None
    finish(scheduler, [first])
    assert scheduler.next_episode() is None


def test_what_finishes_after_it_was_cut_off_is_surplus() -> None:
    scheduler = make(num_groups=1, group_size=1, extra_members=1)
    first, second = start_all(scheduler)
    finish(scheduler, [first])
    scheduler.drain()
    finish(scheduler, [second])
    assert scheduler.drain() == [Surplus(second)]
    assert taken(scheduler) == ["g0"]


def tail(**options: Any) -> Scheduler:
    return make(num_groups=2, group_size=1, extra_groups=1, extra_members=1, tail_batching=True, **options)


def test_a_short_round_launches_more_than_it_keeps_and_puts_the_rest_in_the_long_queue() -> None:
    scheduler = tail()
    episodes = start_all(scheduler)
    assert [(e.group, e.member) for e in episodes] == [(g, m) for g in range(3) for m in range(2)]
    finish(scheduler, of_group(episodes, 1, 2))
    assert scheduler.counts()["waiting"] == 1
    batch = scheduler.take_batch()
    assert batch is not None
    assert [(g.id, g.round_kind) for g in batch.groups] == [("g1", "short"), ("g2", "short")]
    scheduler.on_version(1)
    assert groups_of(start_all(scheduler)) == [3, 4, 5], "one prompt is not enough for a long round"


def test_a_long_round_plays_the_long_queue_with_nothing_to_spare() -> None:
    scheduler = tail()
    for version in range(2):
        scheduler.on_version(version)
        finish(scheduler, start_all(scheduler)[2:], version)
        taken(scheduler)
    scheduler.on_version(2)
    episodes = start_all(scheduler)
    assert [(e.group, e.member) for e in episodes] == [(0, 0), (3, 0)]
    finish(scheduler, episodes[:1], 2)
    assert scheduler.take_batch() is None, "a long round waits"
    finish(scheduler, episodes[1:], 2)
    batch = scheduler.take_batch()
    assert batch is not None and {g.round_kind for g in batch.groups} == {"long"}
    assert isinstance(event := scheduler.drain()[-1], BatchTaken) and event.round_kind == "long"


def test_the_last_rounds_empty_the_long_queue() -> None:
    scheduler = tail(last_batch=3)
    kinds = []
    for version in range(4):
        scheduler.on_version(version)
        while (batch := scheduler.take_batch()) is None:
            finish(scheduler, start_all(scheduler)[::-1], version)
        kinds.append(batch.groups[0].round_kind)
    assert kinds == ["short", "short", "long", "long"]
    assert scheduler.counts()["waiting"] == 0
