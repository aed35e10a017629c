"""Which engine the scheduler gives an episode to."""

from __future__ import annotations

from scheduling import finish, lose, make, start_all


def test_the_answers_of_a_prompt_are_replicated_onto_the_engines() -> None:
    episodes = start_all(make(group_size=3, engines=3))
    assert [episode.engine for episode in episodes] == [0, 1, 2, 0, 1, 2]


def test_without_replication_a_group_stays_on_one_engine() -> None:
    episodes = start_all(make(num_groups=3, group_size=2, engines=2, replicate_prompts=False))
    assert [episode.engine for episode in episodes] == [0, 0, 1, 1, 0, 0]


def test_an_engine_counts_as_idle_when_its_episodes_have_ended_or_were_cut_off() -> None:
    scheduler = make(num_groups=1, group_size=1, extra_members=1, engines=2, async_ratio=2.0)
    episodes = [scheduler.next_episode() for _ in range(4)]
    assert [(e.group, e.engine) for e in episodes if e] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    finish(scheduler, [episode for episode in episodes[:1] if episode])  # the other of g0 is cut off
    lose(scheduler, *(episode for episode in episodes[2:3] if episode))  # the other of g1 makes up for it
    assert [e.engine for e in start_all(scheduler)] == [0, 0], "engine 1 is serving g1, and engine 0 nobody"
