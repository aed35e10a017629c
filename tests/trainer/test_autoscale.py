"""The number of environments follows what the run can use: the rule against a model of engines and environments, and
the loop that follows it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import PATIENCE_S, TASKS, Leases, ScriptedEngine, Words, hanging, options, until

from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.rollout import assembly, autoscale
from rocknroll.trainer.rollout.autoscale import WINDOW, Autoscaler, Load
from rocknroll.trainer.rollout.environments import part_of
from rocknroll.trainer.rollout.episode import Player
from rocknroll.trainer.rollout.faults import FailureWindow
from rocknroll.trainer.rollout.loop import RolloutFailed, RolloutLoop
from rocknroll.trainer.rollout.scheduler import Scheduler, SchedulerOptions
from rocknroll.trainer.rollout.tasks import TaskOrder


@dataclass
class Plant:
    """Episodes that take `engine_s` and `environment_s` in turns; an engine place serves one at a time."""

    places: int
    engine_s: float
    environment_s: float
    time_s: float = 0.0
    playing_s: float = 0.0
    inside_s: float = 0.0

    def run(self, count: int, demand: int, wall_s: float = 5.0) -> Load:
        playing = min(count, demand)
        turn_s = self.engine_s + self.environment_s
        turns_per_s = min(playing / turn_s, self.places / self.engine_s)
        self.time_s += wall_s
        self.playing_s += playing * wall_s
        self.inside_s += turns_per_s * self.environment_s * wall_s
        return Load(self.time_s, demand, self.playing_s, self.inside_s)

    @property
    def useful(self) -> float:
        """Episodes that just fill the places."""
        return self.places * (self.engine_s + self.environment_s) / self.engine_s


times = st.floats(0.01, 1.0)


@given(
    places=st.integers(1, 64), engine_s=times, environment_s=times, least=st.integers(1, 8), more=st.integers(0, 300)
)
def test_it_settles_where_the_engines_are_just_full(
    places: int, engine_s: float, environment_s: float, least: int, more: int
) -> None:
    most = least + more
    plant, scaler = Plant(places, engine_s, environment_s), Autoscaler(least, most, places)
    counts = [scaler.observe(plant.run(scaler.count, demand=10_000)) for _ in range(120)]
    ideal = max(least, min(most, plant.useful))
    assert all(least <= count <= most for count in counts)
    assert counts[-1] == pytest.approx(ideal, rel=0.15, abs=1.0)
    assert len(set(counts[-40:])) == 1, "it goes to and fro"


@given(
    loads=st.lists(st.tuples(st.integers(0, 100), times, st.floats(0.0, 1.0)), max_size=60),
    least=st.integers(1, 20),
    more=st.integers(0, 100),
)
def test_it_stays_within_its_bounds_whatever_it_sees(
    loads: list[tuple[int, float, float]], least: int, more: int
) -> None:
    scaler, playing_s, inside_s = Autoscaler(least, least + more, 8), 0.0, 0.0
    for step, (demand, spent_s, share) in enumerate(loads):
        playing_s += spent_s
        inside_s += spent_s * share
        assert least <= scaler.observe(Load(playing_s + step, demand, playing_s, inside_s)) <= least + more


def test_it_never_has_more_than_there_is_to_play_and_gives_up_nothing_for_a_pause() -> None:
    plant, scaler = Plant(8, 0.5, 0.5), Autoscaler(2, 100, 8)
    for _ in range(2 * WINDOW):
        scaler.observe(plant.run(scaler.count, demand=12))
    assert scaler.count == 12
    for _ in range(WINDOW - 1):  # the learner's step
        assert scaler.observe(plant.run(scaler.count, demand=0)) == 12
    scaler.observe(plant.run(scaler.count, demand=0))
    assert scaler.count == 2
    scaler.observe(plant.run(scaler.count, demand=12))
    assert scaler.count == 12


def test_before_anything_is_known_there_is_an_environment_for_each_place() -> None:
    assert [Autoscaler(2, 40, places).count for places in (1, 16, 64)] == [2, 16, 40]
    scaler = Autoscaler(2, 40, 16)
    assert scaler.observe(Load(0.0, 0, 0.0, 0.0)) == 16


def test_parts_of_a_fleet_are_never_empty() -> None:
    assert [part_of(10, share) for share in (0.001, 0.1, 0.11, 0.3, 1.0)] == [1, 1, 2, 3, 10]
    assert all(part_of(count, count / count) == count for count in range(1, 200))
    assert all(part_of(most, count / most) == count for most in range(1, 60) for count in range(1, most + 1))


class Scaled(Leases):
    """Environments that remember what they were scaled to."""

    def __init__(self) -> None:
        super().__init__()
        self.shares: list[float] = []
        self.busy_s = 0.0

    def scale(self, share: float) -> None:
        self.shares.append(share)

    def metrics(self) -> dict[str, float]:
        return {"busy_s": self.busy_s}


def make_loop(leases: Leases, concurrency: int) -> RolloutLoop:
    player = Player(leases, ScriptedEngine(), Words(), options())
    scheduler = Scheduler(TaskOrder(TASKS, 0), SchedulerOptions(num_groups=2, group_size=2))
    return RolloutLoop(scheduler, player, concurrency=concurrency, seed=0, failures=FailureWindow(0.5))


class Always(Autoscaler):
    """Wants one number, whatever it sees; with 0 it breaks."""

    def __init__(self, wanted: int) -> None:
        super().__init__(1, 4, 1)
        self._always = wanted

    def observe(self, load: Load) -> int:
        self.count = self._always
        assert 1 / self.count
        return self.count


@pytest.mark.asyncio
async def test_the_loop_plays_as_many_at_a_time_as_it_is_told_to() -> None:
    leases = Leases(hanging("g0.0.0", "g0.1.0", "g1.0.0", "g1.1.0"))
    loop = make_loop(leases, concurrency=1)
    async with asyncio.timeout(PATIENCE_S):
        await loop.start()
        assert loop.demand() == 0
        await loop.train()
        await until(lambda: leases.open == 1)
        assert loop.demand() == 4
        loop.resize(3)
        await until(lambda: leases.open == 3)
        loop.resize(1)
        await asyncio.sleep(0.05)
        assert leases.open == 3, "what is being played goes on"
        assert loop.slots_s() >= loop.slot_busy_s() > 0.0
        await loop.stop()


@pytest.mark.asyncio
async def test_loop_and_fleets_follow_what_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoscale, "INTERVAL_S", 0.01)
    leases = Scaled()
    loop = make_loop(leases, concurrency=1)
    await loop.start()
    await loop.train()
    async with assembly.following(Always(3), loop, leases):
        await until(lambda: leases.shares == [0.75])
        await until(lambda: len(leases.owners) == 4)
    await loop.stop()


@pytest.mark.asyncio
async def test_a_run_whose_scaling_breaks_ends_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoscale, "INTERVAL_S", 0.01)
    leases = Scaled()
    loop = make_loop(leases, concurrency=0)
    await loop.start()
    async with assembly.following(Always(0), loop, leases):
        with pytest.raises(RolloutFailed, match="ZeroDivisionError"):
            await asyncio.wait_for(loop.next_batch(0), PATIENCE_S)
    await loop.stop()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sandbox": {"count": 4, "least": 5}}, r"`sandbox.least` \(5\) must not exceed `sandbox.count` \(4\)"),
        (
            {"sandbox": {"count": 96, "least": 5}, "rollout": {"turn_barrier": True, "async_ratio": 0}},
            "with `sandbox.least` there may be too few sandboxes",
        ),
    ],
)
def test_recipes_with_bounds_that_make_no_sense_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Recipe.model_validate(changes)
