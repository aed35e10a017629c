"""The scheduler's laws in simulated time, over random recipes, machines and faults."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling import Laws, new_scheduler
from test_scheduler_properties import recipes

from rocknroll.trainer.rollout.events import Event, Started
from rocknroll.trainer.rollout.scheduler import SchedulerOptions
from rocknroll.trainer.simulate.report import Report
from rocknroll.trainer.simulate.simulation import Simulation
from rocknroll.trainer.simulate.world import Fixed, LogNormal, Normal, World

BATCHES = 12

WORLDS = st.builds(
    World,
    slots=st.integers(1, 40),
    engine_slots=st.integers(1, 16),
    turns=st.sampled_from([Fixed(3), LogNormal(4, 1.0, 60)]),
    member_factor=st.sampled_from([Fixed(1.0), LogNormal(1.0, 0.5, 4.0)]),
    generate_s=st.sampled_from([Fixed(0.5), Normal(1.0, 1.0)]),
    step_s=st.sampled_from([Fixed(1.0), Normal(10.0, 10.0)]),
    train_s=st.sampled_from([Fixed(0.0), Fixed(20.0), Fixed(200.0)]),
    fail_rate=st.sampled_from([0.0, 0.1, 0.3]),
    hang_rate=st.sampled_from([0.0, 0.02, 0.2]),
    slow_fraction=st.sampled_from([0.0, 0.05, 0.5]),
    episode_timeout_s=st.just(400.0),
    seed=st.integers(0, 2**16),
)


@dataclass
class Watched:
    """A simulation whose events are held against the laws, and that knows when each group first started."""

    options: SchedulerOptions
    world: World
    first_started: dict[int, int] = field(default_factory=dict)
    """Batch that was being collected when a group first started."""

    def __post_init__(self) -> None:
        self.laws = Laws(self.options)
        self.simulation = Simulation(new_scheduler(self.options), self.world, self.hear)

    def hear(self, events: Sequence[Event]) -> None:
        self.laws.hear(events)
        self.laws.buffer(self.simulation.scheduler)
        assert len(self.laws.playing) <= self.world.slots
        for event in events:
            if isinstance(event, Started):
                self.first_started.setdefault(event.episode.group, self.simulation.scheduler.batches_taken)

    def run(self, batches: int) -> Report:
        report = self.simulation.run(batches)
        assert report.max_staleness <= math.ceil(self.options.async_ratio)
        return report

    def kill(self) -> None:
        """The rollout process dies and is restored from its journal."""
        assert not self.simulation.scheduler.drain(), "between batches everything has been told"
        state = json.loads(json.dumps(self.simulation.scheduler.state_dict()))
        self.laws.interrupted()
        restored = new_scheduler(self.options)
        restored.load_state_dict(state, dict(self.laws.kept))
        self.simulation.replace(restored)


def patience(options: SchedulerOptions) -> int:
    """Batches within which a group that has started is trained on, filtered or dropped.

    A life ends at the latest with the batch that the group is due for, and begins anew when all that had started
    of it was lost to infrastructure. Between two lives it waits until the spare groups have left, and for those that
    lost before it, of which there are never more than groups in flight; each batch frees places for N of them.
    """
    pacing = options.pacing
    in_flight = pacing.places(0, 0) + options.extra_groups
    lives = options.max_requeues + 1
    waiting = math.ceil(in_flight / options.num_groups) + math.ceil(options.extra_groups / options.num_groups) + 2
    return (lives + options.infra_retries) * (pacing.bound + 1) + (lives - 1) * waiting


@settings(max_examples=60, deadline=None)
@given(options=recipes(), world=WORLDS)
def test_no_timing_breaks_a_law_and_every_group_ends(options: SchedulerOptions, world: World) -> None:
    options = replace(options, last_batch=None)
    watched = Watched(options, world)
    watched.run(BATCHES)
    laws, counts = watched.laws, watched.simulation.scheduler.counts()
    assert len(laws.started - laws.ended.keys() - laws.open) == counts["waiting"]
    if options.tail_batching:
        return  # how long a prompt waits for a long round depends on how many lose; the next test has its end
    for group, first in watched.first_started.items():
        ended = laws.batch_of.get(group, BATCHES if group not in laws.ended else first)
        assert ended - first <= patience(options), f"group {group} starved"


@settings(max_examples=30, deadline=None)
@given(options=recipes(), world=WORLDS)
def test_tail_batching_has_trained_every_prompt_when_the_run_ends(options: SchedulerOptions, world: World) -> None:
    options = replace(options, async_ratio=0.0, tail_batching=True, last_batch=BATCHES - 1)
    watched = Watched(options, world)
    watched.run(BATCHES)
    assert watched.laws.started == watched.laws.ended.keys()
    assert watched.simulation.scheduler.counts()["waiting"] == 0


@settings(max_examples=60, deadline=None)
@given(options=recipes(), world=WORLDS, before=st.integers(1, 4), after=st.integers(1, 4))
def test_a_run_killed_between_batches_goes_on_within_the_laws(
    options: SchedulerOptions, world: World, before: int, after: int
) -> None:
    watched = Watched(replace(options, last_batch=None), world)
    watched.run(before)
    watched.kill()
    report = watched.run(after)
    assert [batch.index for batch in report.batches] == list(range(before + after))


@settings(max_examples=40, deadline=None)
@given(world=WORLDS, num_groups=st.integers(1, 4), group_size=st.integers(1, 3))
def test_synchronous_batches_do_not_depend_on_timing(world: World, num_groups: int, group_size: int) -> None:
    options = SchedulerOptions(num_groups, group_size, infra_retries=100)
    patient = replace(world, episode_timeout_s=1e9)
    other = replace(patient, slots=1, step_s=Fixed(7.0), generate_s=Fixed(0.1))
    first, second = (Watched(options, its_world).run(4) for its_world in (patient, other))
    assert [batch.groups for batch in first.batches] == [batch.groups for batch in second.batches]
