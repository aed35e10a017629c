"""The scheduler's laws under any order of starting, finishing, failing, updating and dying.

The driver has no clock: at every step chance decides what happens next, so that it reaches orders which no
timing would. `test_simulate_properties.py` does the same with clocks.
"""

from __future__ import annotations

import copy
import json
import random
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling import Laws, new_scheduler, played

from rocknroll.trainer.rollout.events import Aborted, Episode, Event
from rocknroll.trainer.rollout.scheduler import Scheduler, SchedulerOptions
from rocknroll.trainer.trajectory import Outcome, Trajectory

BATCHES = 6


@st.composite
def recipes(draw: st.DrawFn) -> SchedulerOptions:
    num_groups, group_size = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    tail_batching = draw(st.booleans())
    max_requeues = draw(st.integers(0, 2))
    return SchedulerOptions(
        num_groups=num_groups,
        group_size=group_size,
        async_ratio=0.0 if tail_batching else draw(st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0])),
        extra_groups=draw(st.integers(0, 3)) if max_requeues or tail_batching else 0,
        extra_members=draw(st.integers(0, 2)),
        max_requeues=max_requeues,
        infra_retries=draw(st.integers(0, 3)),
        tail_batching=tail_batching,
        last_batch=draw(st.sampled_from([None, BATCHES - 1])),
        max_filtered=draw(st.sampled_from([None, 0, 2, 5])) if group_size > 1 else None,
        engines=draw(st.integers(1, 3)),
        replicate_prompts=draw(st.booleans()),
    )


@dataclass(frozen=True)
class Chances:
    """How often something goes wrong, and how far the learner lags behind."""

    slots: int = 8
    failure: float = 0.0
    abort: float = 0.0
    late: float = 0.0
    """An aborted episode finishes all the same."""
    flat: float = 0.0
    lagging_engine: float = 0.0
    """An episode is sampled with weights one version older than those that the scheduler knows of."""
    death: float = 0.0
    rollback: float = 0.0
    """A process that died goes on with a learner that is set back by up to two versions."""
    publish: float = 0.3


RATES = st.sampled_from([0.0, 0.1, 0.4])
CHANCES = st.builds(
    Chances,
    slots=st.integers(1, 24),
    failure=RATES,
    abort=RATES,
    late=RATES,
    flat=RATES,
    lagging_engine=st.sampled_from([0.0, 0.0, 0.2]),
    death=st.sampled_from([0.0, 0.0, 0.02]),
    rollback=RATES,
    publish=st.sampled_from([0.1, 0.5, 1.0]),
)


@dataclass
class Run:
    """A scheduler driven by chance; `laws` hears everything."""

    options: SchedulerOptions
    chances: Chances
    dice: random.Random
    playing: list[tuple[Episode, int]] = field(default_factory=list)
    cut_off: list[Episode] = field(default_factory=list)
    trained: list[tuple[Trajectory, ...]] = field(default_factory=list)
    history: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.laws = Laws(self.options, engines_lag=self.chances.lagging_engine > 0)
        self.scheduler = new_scheduler(self.options)
        self.to_publish = 0

    @property
    def batches(self) -> list[list[str]]:
        """Ids of the episodes of each batch."""
        return [[t.id for t in batch] for batch in self.trained]

    def to_the_end(self, steps: int = 50_000) -> None:
        for _ in range(steps):
            if self.scheduler.batches_taken == BATCHES:
                return
            self.step()
        raise AssertionError(f"only {self.scheduler.batches_taken} batches after {steps} steps")

    def step(self) -> None:
        if self.dice.random() < self.chances.death:
            self.die()
        if self.to_publish > self.scheduler.version and self.dice.random() < self.chances.publish:
            self.scheduler.on_version(self.scheduler.version + 1)
        while len(self.playing) < self.chances.slots and (episode := self.scheduler.next_episode()) is not None:
            self.playing.append((episode, self.scheduler.version))
            self.hear()
        self.hear()
        if self.scheduler.version == self.scheduler.batches_taken and self.take():
            return
        if self.cut_off and self.dice.random() < self.chances.late:
            late = self.cut_off.pop()
            self.scheduler.finished(late, played(late, self.scheduler.version))
        elif self.playing:
            self.end(*self.playing.pop(self.dice.randrange(len(self.playing))))
        else:
            assert self.to_publish > self.scheduler.version, "nothing plays and no batch is ready: it is stuck"
        self.hear()

    def take(self) -> bool:
        batch = self.scheduler.take_batch()
        self.hear()
        if batch is None:
            return False
        self.laws.take(batch)
        self.trained.append(tuple(t for group in batch.groups for t in group.trajectories))
        self.to_publish = batch.index + 1
        return True

    def end(self, episode: Episode, started: int) -> None:
        outcome, chance = Outcome.COMPLETED, self.dice.random()
        if chance < self.chances.failure:
            outcome = Outcome.INFRA_ERROR
        elif chance < self.chances.failure + self.chances.abort:
            outcome = Outcome.ABORTED
        behind = self.dice.random() < self.chances.lagging_engine
        reward = 1.0 if self.dice.random() < self.chances.flat else None
        self.scheduler.finished(episode, played(episode, max(0, started - behind), outcome, reward))

    def hear(self) -> None:
        events: list[Event] = self.scheduler.drain()
        self.history += map(repr, events)
        self.laws.hear(events)
        still = [(episode, started) for episode, started in self.playing if episode.id in self.laws.playing]
        self.cut_off += [episode for episode, _ in self.playing if episode.id not in self.laws.playing]
        self.playing = still
        self.laws.buffer(self.scheduler)

    def die(self) -> None:
        """The process is killed and restored from what the journal holds, perhaps with an older learner."""
        state = json.loads(json.dumps(self.scheduler.state_dict()))
        self.playing, self.cut_off = [], []
        self.laws.interrupted()
        self.scheduler = new_scheduler(self.options)
        self.scheduler.load_state_dict(state, dict(self.laws.kept))
        if self.dice.random() < self.chances.rollback:
            self.scheduler.on_version(max(0, self.scheduler.version - self.dice.randrange(3)))
            self.to_publish = self.scheduler.batches_taken
            self.hear()


@settings(max_examples=60, deadline=None)
@given(options=recipes(), chances=CHANCES, seed=st.integers(0, 2**32 - 1))
def test_no_order_of_events_breaks_a_law_or_stops_the_run(
    options: SchedulerOptions, chances: Chances, seed: int
) -> None:
    run = Run(options, chances, random.Random(seed))
    run.to_the_end()
    lost = run.laws.requeued.keys() - run.laws.ended.keys() - run.laws.open
    assert len(lost) == run.scheduler.counts()["waiting"], "whoever lost and is not back waits to be played again"
    assert run.laws.started == run.laws.ended.keys() | run.laws.open | lost


@settings(max_examples=30, deadline=None)
@given(options=recipes(), chances=CHANCES, seed=st.integers(0, 2**32 - 1))
def test_the_same_run_twice_is_the_same_run(options: SchedulerOptions, chances: Chances, seed: int) -> None:
    first, second = (Run(options, chances, random.Random(seed)) for _ in range(2))
    first.to_the_end()
    second.to_the_end()
    assert first.history == second.history and first.batches == second.batches


@settings(max_examples=60, deadline=None)
@given(options=recipes(), slots=st.integers(1, 24), steps=st.integers(0, 80), seed=st.integers(0, 2**32 - 1))
def test_a_restored_scheduler_has_the_same_future(options: SchedulerOptions, slots: int, steps: int, seed: int) -> None:
    options = replace(options, last_batch=None)
    chances = Chances(slots=slots, failure=0.1, flat=0.1, publish=0.5)
    run = Run(options, chances, random.Random(seed))
    for _ in range(steps):
        run.step()
    while run.playing:  # what is being played must start anew, so let both copies begin with nothing under way
        run.end(*run.playing.pop())
        run.hear()
    state = json.loads(json.dumps(run.scheduler.state_dict()))
    restored = new_scheduler(options)
    restored.load_state_dict(state, dict(run.laws.kept))
    assert restored.state_dict() == state
    assert future(restored, seed) == future(run.scheduler, seed)


def future(scheduler: Scheduler, seed: int) -> list[str]:
    """What the next two batches' worth of starting and finishing says of itself."""
    dice = random.Random(seed)
    playing: list[Episode] = []
    said: list[str] = []
    end = scheduler.batches_taken + 2
    while scheduler.batches_taken < end:
        if scheduler.version < scheduler.batches_taken:
            scheduler.on_version(scheduler.version + 1)
        while len(playing) < 6 and (episode := scheduler.next_episode()) is not None:
            playing.append(episode)
        if scheduler.take_batch() is None:
            episode = playing.pop(dice.randrange(len(playing)))
            outcome = Outcome.INFRA_ERROR if dice.random() < 0.2 else Outcome.COMPLETED
            scheduler.finished(episode, played(episode, scheduler.version, outcome))
        events = scheduler.drain()
        gone = [event.episode for event in events if isinstance(event, Aborted)]
        playing = [episode for episode in playing if episode not in gone]
        said += map(repr, events)
    return said


@settings(max_examples=60, deadline=None)
@given(
    num_groups=st.integers(1, 4),
    group_size=st.integers(1, 3),
    slots=st.integers(1, 12),
    seeds=st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    death=st.sampled_from([0.0, 0.1]),
)
def test_synchronous_batches_are_the_same_whatever_finishes_first_and_whoever_dies(
    num_groups: int, group_size: int, slots: int, seeds: tuple[int, int], death: float
) -> None:
    options = SchedulerOptions(num_groups=num_groups, group_size=group_size)
    quiet = Run(options, Chances(slots=slots), random.Random(seeds[0]))
    other = Run(options, Chances(slots=slots + 3, death=death, rollback=0.5), random.Random(seeds[1]))
    quiet.to_the_end()
    other.to_the_end()
    assert quiet.batches == other.batches


@settings(max_examples=60, deadline=None)
@given(
    num_groups=st.integers(1, 4),
    async_ratio=st.sampled_from([0.25, 0.5, 0.75]),
    max_requeues=st.integers(0, 2),
    slots=st.integers(1, 24),
    seed=st.integers(0, 2**32 - 1),
)
def test_with_a_fractional_ratio_no_larger_share_of_a_batch_is_stale(
    num_groups: int, async_ratio: float, max_requeues: int, slots: int, seed: int
) -> None:
    options = SchedulerOptions(num_groups, 1, async_ratio, max_requeues=max_requeues)
    run = Run(options, Chances(slots=slots, publish=0.1), random.Random(seed))
    run.to_the_end()
    for version, batch in enumerate(run.trained):
        assert sum(t.oldest_version < version for t in batch) <= async_ratio * num_groups


@settings(max_examples=40, deadline=None)
@given(options=recipes(), slots=st.integers(1, 24), steps=st.integers(0, 80), seed=st.integers(0, 2**32 - 1))
def test_the_backlog_is_what_would_start_if_there_were_slots(
    options: SchedulerOptions, slots: int, steps: int, seed: int
) -> None:
    run = Run(options, Chances(slots=slots, failure=0.1, publish=0.5), random.Random(seed))
    for _ in range(steps):
        if run.scheduler.batches_taken == BATCHES:
            break
        run.step()
        starting = copy.deepcopy(run.scheduler)
        backlog = starting.backlog()
        started = 0
        while starting.next_episode() is not None:
            started += 1
        assert (backlog > 0) == (started > 0)
        if not options.max_requeues and not options.tail_batching:
            assert backlog == started
