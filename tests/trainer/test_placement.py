"""Which engine the scheduler gives an episode to."""

from __future__ import annotations

from scheduling import finish, make, start_all, taken


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
