"""What the simulator shows of the scheduler, and that its clock is right."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from scheduling import make

from rocknroll.trainer.rollout.events import Aborted, Event, Failed, Kept, Started
from rocknroll.trainer.simulate.clock import Clock, Process, Signal, Slots, Stuck
from rocknroll.trainer.simulate.simulation import Simulation, simulate
from rocknroll.trainer.simulate.world import Fixed, LogNormal, Normal, Uniform, World

PLAIN = World(turns=Fixed(3), generate_s=Fixed(1.0), step_s=Fixed(2.0), train_s=Fixed(5.0))
TAILED = World(slots=256, turns=LogNormal(15, 0.8, 200), member_factor=LogNormal(1.0, 0.3), step_s=Fixed(1.0))


def test_a_synchronous_run_takes_the_sum_of_playing_and_training() -> None:
    report = simulate(make(), PLAIN, batches=3)
    assert [batch.taken_s for batch in report.batches] == [9.0, 23.0, 37.0]
    assert report.elapsed_s == 42.0 and report.batch_s == 14.0
    assert report.learner_waited_s == 27.0
    assert report.max_staleness == 0


def test_an_asynchronous_run_plays_while_it_trains() -> None:
    report = simulate(make(async_ratio=1.0), PLAIN, batches=3)
    assert [batch.taken_s for batch in report.batches] == [9.0, 14.0, 23.0]
    assert report.max_staleness == 1


def test_episodes_share_the_slots_of_environments_and_engines() -> None:
    one_environment = World(slots=1, turns=Fixed(1), train_s=Fixed(0.0))
    report = simulate(make(num_groups=1, group_size=4), one_environment, batches=1)
    assert report.elapsed_s == 8.0
    assert report.environment_utilisation == 1.0 and report.engine_utilisation == 0.5 / one_environment.engine_slots
    one_request = World(engine_slots=1, turns=Fixed(1), train_s=Fixed(0.0))
    assert simulate(make(num_groups=1, group_size=4), one_request, batches=1).elapsed_s == 5.0
    assert simulate(make(num_groups=1, group_size=4, engines=2), one_request, batches=1).elapsed_s == 3.0


def test_answers_on_several_engines_come_sooner_than_on_one() -> None:
    world = World(engine_slots=1, turns=Fixed(1), step_s=Fixed(0.0), train_s=Fixed(0.0))
    took = [
        simulate(make(num_groups=1, group_size=4, engines=4, replicate_prompts=replicate), world, 1).elapsed_s
        for replicate in (True, False)
    ]
    assert took == [1.0, 4.0]


def test_a_hung_environment_costs_its_deadline_and_is_played_again() -> None:
    world = World(turns=Fixed(1), hang_rate=0.2, episode_timeout_s=50.0, train_s=Fixed(0.0))
    report = simulate(make(num_groups=4, group_size=4), world, batches=2)
    assert report.events["Failed"] > 0
    assert all(batch.waited_s >= 50.0 for batch in report.batches)


def test_spare_members_spare_the_batch_a_hung_environment() -> None:
    world = World(turns=Fixed(1), hang_rate=0.1, episode_timeout_s=50.0, train_s=Fixed(0.0))
    plain, spare = (simulate(make(4, 4, extra_members=extra), world, batches=4) for extra in (0, 3))
    assert spare.elapsed_s < plain.elapsed_s / 2
    assert spare.events["Aborted"] == 4 * 4 * 3 - spare.events.get("Failed", 0)


def test_tail_batching_gains_on_long_tailed_lengths_without_losing_the_long_tasks() -> None:
    plain = simulate(make(16, 8), TAILED, batches=20)
    tail = simulate(make(16, 8, extra_groups=4, extra_members=2, tail_batching=True, last_batch=19), TAILED, batches=20)
    assert tail.elapsed_s < plain.elapsed_s / 1.25
    assert {batch.round_kind for batch in tail.batches} == {"short", "long"}
    trained = {name for batch in tail.batches for name in batch.groups}
    assert trained == {f"g{i}" for i in range(len(trained))}, "no task was skipped because it was long"


def test_races_gain_on_slow_and_hung_environments_without_starving_a_task() -> None:
    world = World(turns=Fixed(10), hang_rate=0.02, slow_fraction=0.05, episode_timeout_s=300.0, train_s=Fixed(20.0))
    plain = simulate(make(8, 4, async_ratio=1.0), world, batches=20)
    race = simulate(make(8, 4, async_ratio=1.0, extra_groups=3, max_requeues=3), world, batches=20)
    assert race.elapsed_s < plain.elapsed_s / 1.5
    assert race.max_staleness <= 1
    trained = {int(name.removeprefix("g")) for batch in race.batches for name in batch.groups}
    assert len(set(range(max(trained))) - trained) <= 8 + 8 + 3, "all but those that may be in flight or waiting"


def test_what_was_cut_off_frees_its_slot_at_once() -> None:
    playing: set[str] = set()
    most = 0

    def hear(events: Sequence[Event]) -> None:
        nonlocal most
        for event in events:
            if isinstance(event, Started):
                playing.add(event.episode.id)
            elif isinstance(event, (Kept, Failed, Aborted)):
                playing.remove(event.episode.id)
            most = max(most, len(playing))

    world = World(slots=6, turns=LogNormal(5, 1.0, 50), hang_rate=0.2, fail_rate=0.1, train_s=Fixed(1.0))
    report = simulate(make(3, 2, extra_members=1, async_ratio=1.0), world, 10, hear)
    assert most == 6, "slots are full, and never more than full"
    assert report.events["Aborted"] > 0


def test_a_killed_rollout_process_goes_on_where_it_was() -> None:
    scheduler = make(2, 2)
    simulation = Simulation(scheduler, PLAIN)
    simulation.run(1)
    restored = make(2, 2)
    restored.load_state_dict(scheduler.state_dict(), {})
    simulation.replace(restored)
    report = simulation.run(1)
    assert [batch.groups for batch in report.batches] == [("g0", "g1"), ("g2", "g3")]
    assert report.elapsed_s == 28.0


def test_the_same_world_gives_the_same_report() -> None:
    world = World(turns=LogNormal(5, 1.0), step_s=Normal(2, 2), fail_rate=0.1, slow_fraction=0.2, seed=4)
    first, second = (simulate(make(3, 2, async_ratio=0.5), world, 5) for _ in range(2))
    assert first == second


def test_an_episode_meets_the_same_fate_whenever_it_is_played() -> None:
    world = World(turns=Uniform(1, 30), fail_rate=0.5, hang_rate=0.2)
    first, again, other = world.luck(3, 1, 0), world.luck(3, 1, 0), world.luck(3, 1, 1)
    assert (first.turns, first.fails_at, first.success) == (again.turns, again.fails_at, again.success)
    assert first.dice.random() == again.dice.random() != other.dice.random()
    assert world.luck(3, 2, 0).turns == first.turns, "members of a group play the same task"


def test_a_run_that_cannot_go_on_says_so() -> None:
    clock = Clock()

    def wait() -> Process:
        yield Signal(clock)

    with pytest.raises(Stuck, match="still waits"):
        clock.run(clock.start(wait()))


def test_a_cancelled_process_gives_its_slot_to_the_next_in_the_queue() -> None:
    clock = Clock()
    slots = Slots(clock, 1)

    def hold(seconds: float) -> Process:
        yield slots
        try:
            yield seconds
        finally:
            slots.release()
        return clock.now_s

    def cancel_at(seconds: float) -> Process:
        yield seconds
        clock.cancel(queued)
        clock.cancel(holder)

    holder, queued, last = clock.start(hold(100.0)), clock.start(hold(100.0)), clock.start(hold(1.0))
    clock.start(cancel_at(3.0))
    assert clock.run(last) == 4.0
    assert slots.utilisation() == 1.0
