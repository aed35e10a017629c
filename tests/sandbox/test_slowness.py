"""Fail-slow detection: what it finds, how soon, and how rarely it is wrong."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from rocknroll.sandbox.slowness import Cleared, FailSlow, SlownessPolicy, Suspected

Latency = Callable[[random.Random], float]
SHAPES: dict[str, Latency] = {
    "steady": lambda rng: rng.uniform(0.09, 0.11),
    "lognormal": lambda rng: 0.1 * rng.lognormvariate(0.0, 1.0),
    "pareto": lambda rng: 0.1 * rng.paretovariate(1.1),
    "two kinds of step": lambda rng: rng.choice([0.01, 0.3]) * rng.uniform(0.8, 1.2),
}


class Machine:
    """Members that step one after another at their own pace, on a virtual clock."""

    def __init__(self, size: int, shape: Latency, seed: int, policy: SlownessPolicy | None = None) -> None:
        self.detector = FailSlow(policy or SlownessPolicy())
        self.factors = dict.fromkeys(range(size), 1.0)
        self.steps = dict.fromkeys(range(size), 0)
        self.opinions: list[Suspected | Cleared] = []
        self.now_s = 0.0
        self._shape, self._rng = shape, random.Random(seed)
        self._due = {member: self._draw(member) for member in self.factors}
        self._began = dict.fromkeys(range(size), 0.0)

    def _draw(self, member: int) -> float:
        return self.now_s + self.factors[member] * self._shape(self._rng)

    def step(self) -> None:
        member = min(self._due, key=self._due.__getitem__)
        self.now_s = self._due[member]
        self.steps[member] += 1
        opinion = self.detector.observe(member, self.now_s - self._began[member], self.now_s)
        if opinion is not None:
            self.opinions.append(opinion)
        self._began[member] = self.now_s
        self._due[member] = self._draw(member)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_one_five_times_slower_among_eight_is_found(shape: str, seed: int) -> None:
    machine = Machine(8, SHAPES[shape], seed)
    machine.factors[3] = 5.0
    while not machine.opinions:
        machine.step()
        assert machine.steps[3] < 150
    (found,) = machine.opinions
    assert isinstance(found, Suspected)
    assert found.member == 3
    assert found.ratio > 2.0
    if shape == "steady":
        assert machine.steps[3] <= 24


@pytest.mark.parametrize("shape", SHAPES)
def test_one_that_becomes_slow_is_found_soon(shape: str) -> None:
    took = []
    for seed in range(6):
        machine = Machine(8, SHAPES[shape], seed)
        machine.run(800)
        assert machine.opinions == []
        machine.factors[5], before = 5.0, machine.steps[5]
        while not machine.opinions:
            machine.step()
        assert machine.detector.suspects == {5}
        took.append(machine.steps[5] - before)
    assert sorted(took)[3] <= 64


@pytest.mark.parametrize("shape", SHAPES)
def test_a_machine_that_is_slow_for_everyone_makes_nobody_suspect(shape: str) -> None:
    for seed in range(4):
        machine = Machine(8, SHAPES[shape], seed)
        for factor in (1.0, 10.0, 1.0, 30.0, 0.1):
            for member in machine.factors:
                machine.factors[member] = factor
            machine.run(300)
        assert machine.opinions == []


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [4, 16])
def test_false_alarms_are_rare(shape: str, size: int) -> None:
    steps = alarms = 0
    for seed in range(5):
        machine = Machine(size, SHAPES[shape], 1000 + seed)
        machine.run(2000)
        steps += 2000
        alarms += sum(isinstance(opinion, Suspected) for opinion in machine.opinions)
    assert alarms <= steps / 10_000


def test_a_difference_that_is_certain_but_small_is_let_be() -> None:
    machine = Machine(8, SHAPES["steady"], 0)
    machine.factors[3] = 1.8
    machine.run(1500)
    assert machine.opinions == []


def test_a_suspect_that_recovers_is_cleared_and_in_between_the_opinion_stays() -> None:
    machine = Machine(8, SHAPES["steady"], 0)
    machine.factors[3] = 5.0
    machine.run(2000)
    machine.factors[3] = 1.75
    machine.run(2000)
    assert machine.detector.suspects == {3}
    machine.factors[3] = 1.0
    machine.run(2000)
    assert [type(opinion) for opinion in machine.opinions] == [Suspected, Cleared]
    assert machine.detector.suspects == frozenset()


def test_without_enough_peers_or_samples_there_is_no_opinion() -> None:
    machine = Machine(3, SHAPES["steady"], 0)
    machine.factors[0] = 100.0
    machine.run(1500)
    assert machine.opinions == []
    detector = FailSlow()
    for number in range(15):
        for member in range(8):
            assert detector.observe(member, 100.0 if member == 0 else 0.1, float(number)) is None


def test_a_peer_that_idles_is_not_compared_with_by_what_it_did_long_ago() -> None:
    detector = FailSlow()
    for number in range(100):
        for member in range(8):
            assert detector.observe(member, 1.0, float(number)) is None
    # All are slow now, but only four do anything.
    for number in range(1, 100):
        for member in range(4):
            assert detector.observe(member, 30.0, 100.0 + 30.0 * number) is None


@pytest.mark.parametrize("shape", SHAPES)
def test_sandboxes_that_differ_by_nature_are_rarely_suspected(shape: str) -> None:
    suspected = 0
    for seed in range(8):
        machine, rng = Machine(8, SHAPES[shape], seed), random.Random(seed)
        for member in machine.factors:
            machine.factors[member] = rng.lognormvariate(0.0, 0.35)
        machine.run(1000)
        suspected += bool(machine.opinions)
    assert suspected <= 2


def test_a_few_very_slow_steps_make_nobody_suspect() -> None:
    detector = FailSlow()
    for number in range(200):
        for member in range(8):
            slow = member == 0 and number % 4 == 0
            assert detector.observe(member, 60.0 if slow else 0.1, float(number)) is None


def test_a_forgotten_member_starts_afresh() -> None:
    machine = Machine(8, SHAPES["steady"], 0)
    machine.factors[3] = 5.0
    machine.run(2000)
    machine.detector.forget(3)
    assert machine.detector.suspects == frozenset()


def test_hysteresis_asks_for_judgements_in_a_row() -> None:
    impatient, patient = (Machine(8, SHAPES["lognormal"], 7, SlownessPolicy(confirmations=number)) for number in (1, 4))
    for machine in (impatient, patient):
        machine.factors[3] = 5.0
        while not machine.opinions:
            machine.step()
    assert patient.steps[3] == impatient.steps[3] + 3 * SlownessPolicy().stride
