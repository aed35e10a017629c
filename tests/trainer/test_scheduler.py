"""What the scheduler starts, keeps, cuts off and hands out, one behaviour at a time."""

from __future__ import annotations

from typing import Any

import pytest
from scheduling import finish, make, of_group, played, start_all

from rocknroll.trainer.rollout.events import (
    Aborted,
    BatchTaken,
    Episode,
    Failed,
    GroupDropped,
    GroupFiltered,
    GroupRequeued,
    Kept,
    Started,
    Surplus,
    Why,
)
from rocknroll.trainer.rollout.scheduler import Scheduler, SchedulerOptions
from rocknroll.trainer.trajectory import Outcome


def groups_of(episodes: list[Episode]) -> list[int]:
    return list(dict.fromkeys(episode.group for episode in episodes))


def lose(scheduler: Scheduler, *episodes: Episode) -> None:
    for episode in episodes:
        scheduler.finished(episode, played(episode, 0, Outcome.INFRA_ERROR))


def taken(scheduler: Scheduler) -> list[str]:
    batch = scheduler.take_batch()
    assert batch is not None
    return [group.id for group in batch.groups]


# Pacing


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


def test_a_batch_carries_the_version_that_trains_on_it() -> None:
    scheduler = make(async_ratio=1.0)
    finish(scheduler, start_all(scheduler))
    first, second = scheduler.take_batch(), scheduler.take_batch()
    assert first is not None and first.index == 0
    assert second is not None and second.index == 1, "taken before version 1 is there, but trained on by it"
    assert scheduler.batches_taken == 2 and scheduler.version == 0


# Races


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
    scheduler = make(num_groups=1, group_size=1)
    finish(scheduler, start_all(scheduler))
    taken(scheduler)
    scheduler.on_version(1)
    finish(scheduler, start_all(scheduler), version=0)
    assert scheduler.take_batch() is None
    assert scheduler.drain()[-1] == GroupRequeued(1, Why.STALE, ("g1.0.0",))
    finish(scheduler, start_all(scheduler), version=1)
    assert taken(scheduler) == ["g1"]


# Spare members


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


# Infrastructure failures


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
    scheduler = make(num_groups=1, group_size=2, extra_members=1, infra_retries=0)
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


# Dynamic sampling


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


# Tail batching


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


# Stream trainer


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


# Placement


def test_the_answers_of_a_prompt_are_replicated_onto_the_engines() -> None:
    episodes = start_all(make(group_size=3, engines=3))
    assert [episode.engine for episode in episodes] == [0, 1, 2, 0, 1, 2]


def test_without_replication_a_group_stays_on_one_engine() -> None:
    episodes = start_all(make(num_groups=3, group_size=2, engines=2, replicate_prompts=False))
    assert [episode.engine for episode in episodes] == [0, 0, 1, 1, 0, 0]


def test_an_engine_whose_episodes_were_cut_off_counts_as_idle() -> None:
    scheduler = make(num_groups=1, group_size=1, extra_members=3, engines=4, async_ratio=1.0)
    episodes = start_all(scheduler)[:4]
    assert [episode.engine for episode in episodes] == [0, 1, 2, 3]
    finish(scheduler, episodes[1:2])
    assert taken(scheduler) == ["g0"]
    scheduler.on_version(1)
    assert sorted(episode.engine for episode in start_all(scheduler)) == [0, 1, 2, 3]


# Bad input


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
