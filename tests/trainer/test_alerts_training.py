"""The rules of training under a clock that the test turns, and what a run's folder and UI get of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocknroll.sandbox.alerts.board import Board
from rocknroll.sandbox.alerts.rule import Alert, Reading
from rocknroll.trainer.alerts.readings import PINNED_BATCHES, SHORTEST_USUAL_S, TIMED, TrainingReader
from rocknroll.trainer.alerts.rules import TRAINING_RULES, training_rules
from rocknroll.trainer.alerts.section import TrainingRuleChanges
from rocknroll.trainer.alerts.watch import RunWatch
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.run_folder import RunFolder
from rocknroll.trainer.ui import Quiet


def recipe(**sections: Any) -> Recipe:
    return Recipe.model_validate(sections)


def rows(count: int, **figures: float) -> list[dict[str, float]]:
    return [
        {"iteration": float(at), **{name.replace("__", "/"): v for name, v in figures.items()}} for at in range(count)
    ]


def value(readings: Iterable[Reading], rule: str) -> float | None:
    return next((reading.value for reading in readings if reading.rule == rule), None)


def judged(reader: TrainingReader, now: float) -> set[str]:
    """Rules that would raise an alert on what there is to read."""
    board = Board(training_rules(TrainingRuleChanges()))
    return {alert.rule for alert in board.observe(reader.read(now), now)}


def test_a_run_in_which_nothing_is_finished_for_three_usual_iterations_stalls() -> None:
    reader = TrainingReader(recipe(), [], 0.0)
    for at in range(1, 6):
        reader.iteration({"iteration": at}, 100.0 * at)
    assert judged(reader, 799.0) == set()
    assert judged(reader, 800.0) == {"stall"}
    reader.heard(1, 801.0)
    assert judged(reader, 1_000.0) == set()
    reader.heard(1, 1_100.0)  # a sign of life of the process, with no episode more
    assert judged(reader, 1_101.0) == {"stall"}


def test_before_iterations_were_timed_the_episode_timeout_is_the_measure() -> None:
    reader = TrainingReader(recipe(rollout={"episode_timeout_s": 50.0}), [], 0.0)
    assert judged(reader, 149.0) == set()
    assert judged(reader, 150.0) == {"stall"}
    for at in range(1, 1 + TIMED):  # one less was timed: there was no iteration before the first
        reader.iteration({"iteration": at}, 10.0 * at)
    ended = 10.0 * TIMED
    assert judged(reader, ended + 149.0) == set()
    assert judged(reader, ended + 150.0) == {"stall"}
    reader.iteration({"iteration": 1 + TIMED}, ended + 10.0)
    assert judged(reader, ended + 10.0 + 3 * SHORTEST_USUAL_S) == {"stall"}


def test_a_run_whose_first_iterations_are_long_has_their_time_for_its_measure() -> None:
    reader = TrainingReader(recipe(rollout={"episode_timeout_s": 50.0}), [], 0.0)
    reader.iteration({"iteration": 1}, 100.0)
    reader.iteration({"iteration": 2}, 300.0)
    assert judged(reader, 899.0) == set()
    assert judged(reader, 900.0) == {"stall"}


def test_a_pause_of_seconds_is_no_stall_however_short_iterations_are() -> None:
    reader = TrainingReader(recipe(), [], 0.0)
    for at in range(5):
        reader.iteration({"iteration": at}, 0.1 * at)
    assert judged(reader, 3 * SHORTEST_USUAL_S - 1.0) == set()
    assert judged(reader, 3 * SHORTEST_USUAL_S + 1.0) == {"stall"}


@given(st.floats(1.0, 1_000.0), st.lists(st.floats(0.5, 1.4), min_size=1, max_size=30))
def test_a_run_whose_iterations_take_about_as_long_as_usual_never_stalls(usual_s: float, factors: list[float]) -> None:
    reader, now = TrainingReader(recipe(), [], 0.0), 0.0
    for at, factor in enumerate(factors):
        now += usual_s * factor
        assert judged(reader, now) == set()
        reader.iteration({"iteration": at}, now)


PINNED = {"staleness__share_2": 0.95, "idle__slots": 0.6}


def test_staleness_at_the_bound_counts_where_pacing_leaves_slots_idle() -> None:
    ahead = recipe(rollout={"async_ratio": 2.0})
    assert judged(TrainingReader(ahead, rows(PINNED_BATCHES, **PINNED), 0.0), 1.0) == {"staleness_pinned"}
    assert judged(TrainingReader(ahead, rows(PINNED_BATCHES - 1, **PINNED), 0.0), 1.0) == set(), "too few batches"
    busy = rows(PINNED_BATCHES, **{**PINNED, "idle__slots": 0.1})
    assert judged(TrainingReader(ahead, busy, 0.0), 1.0) == set(), "slots are what it lacks"
    once_younger = [*rows(PINNED_BATCHES, **PINNED)[:-1], {"iteration": 9.0, "idle/slots": 0.6}]
    assert judged(TrainingReader(ahead, once_younger, 0.0), 1.0) == set()


def test_a_bound_of_one_version_is_met_by_every_run_that_overlaps_and_not_judged() -> None:
    always = rows(9, staleness__share_1=1.0, idle__slots=0.9)
    assert value(TrainingReader(recipe(), always, 0.0).read(1.0), "staleness_pinned") is None


def entropies(*values: float, success: float = 0.2) -> list[dict[str, float]]:
    return [
        {"iteration": float(at), "objective/entropy": entropy, "batch/success": success}
        for at, entropy in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("course", "alerts"),
    [
        (entropies(0.5, 0.4, 0.5, 0.05, 0.04, 0.03), {"entropy_collapse"}),
        (entropies(0.5, 0.4, 0.5, 0.3, 0.2, 0.15), set()),
        (entropies(0.5, 0.4, 0.5, 0.3, 0.001, 0.3), set()),
        (entropies(0.5, 0.4, 0.5, 0.03, 0.02), set()),
        (entropies(0.5, 0.4, 0.5, 0.05, 0.04, 0.03, success=0.95), set()),
        (entropies(0.002, 0.002, 0.002, 0.0, 0.0, 0.0), set()),
        (rows(9), set()),
    ],
    ids=["collapsed", "falling", "once", "too few batches", "solved", "never had any", "not measured"],
)
def test_entropy_collapses_when_what_it_was_is_gone_and_the_task_is_not_solved(
    course: list[dict[str, float]], alerts: set[str]
) -> None:
    assert judged(TrainingReader(recipe(), course, 0.0), 1.0) == alerts


def test_cheating_counts_over_several_batches() -> None:
    assert judged(TrainingReader(recipe(), rows(3, env__cheating=0.3), 0.0), 1.0) == {"cheating"}
    once = [*rows(3, env__cheating=0.0), {"iteration": 3.0, "env/cheating": 0.6}]
    assert judged(TrainingReader(recipe(), once, 0.0), 1.0) == set()
    assert value(TrainingReader(recipe(), rows(3), 0.0).read(1.0), "cheating") is None


def test_a_learner_that_was_set_back_repeats_its_iterations() -> None:
    reader = TrainingReader(recipe(), entropies(0.5, 0.5, 0.5, 0.01, 0.01, 0.01), 0.0)
    assert judged(reader, 1.0) == {"entropy_collapse"}
    reader.iteration({"iteration": 3.0, "objective/entropy": 0.5}, 2.0)
    assert judged(reader, 3.0) == set()


def test_every_rule_of_training_can_be_changed_by_its_name() -> None:
    rules = training_rules(TrainingRuleChanges.model_validate({"stall": {"threshold": 9}}))
    assert {rule.name for rule in rules} == set(TrainingRuleChanges.model_fields)
    assert {rule.name: rule.threshold for rule in rules}["stall"] == 9
    for rule in TRAINING_RULES:
        assert "why it was" in rule.text(Reading(rule.name, "the run", 0.5, "why it was"))


class Ears(Quiet):
    def __init__(self) -> None:
        self.alerts: list[Alert] = []

    def alert(self, alert: Alert) -> None:
        self.alerts.append(alert)


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


QUEUE = Reading("stalled_queue", "pool alfworld", 4.0, "alfworld-1 is RESTARTING")


def watch_of(folder: RunFolder, clock: Clock, ears: Ears, **alerts: Any) -> RunWatch:
    rules = {"disk": {"enabled": False}, **alerts.pop("rules", {})}
    wanted = recipe(rollout={"episode_timeout_s": 100.0}, alerts={"every_s": 3600.0, "rules": rules, **alerts})
    return RunWatch(wanted, folder, ears, {}, clock)


def test_what_happens_to_a_run_reaches_its_folder_and_its_ui(tmp_path: Path) -> None:
    folder, clock, ears = RunFolder(tmp_path), Clock(), Ears()
    with watch_of(folder, clock, ears) as watch:
        watch.heard(0, [QUEUE])
        watch.look()
        clock.now += 120.0
        watch.look()
        clock.now += 180.0
        watch.look()
        assert [alert.rule for alert in ears.alerts] == ["stalled_queue", "stall"]
        watch.heard(1, [])
        watch.look()
        clock.now += 40.0
        watch.look()
    assert [alert.rule for alert in ears.alerts if alert.resolved] == ["stalled_queue", "stall"]
    lines = [json.loads(line) for line in folder.alerts_file.read_text().splitlines()]
    assert [Alert.from_json(line) for line in lines] == ears.alerts
    assert [(alert.rule, alert.resolved) for alert in folder.alerts()] == [
        ("stalled_queue", clock.now),
        ("stall", clock.now),
    ]


def test_a_run_that_is_gone_on_with_goes_on_with_its_open_alerts(tmp_path: Path) -> None:
    folder, clock, ears = RunFolder(tmp_path), Clock(), Ears()
    collapsed = entropies(0.5, 0.5, 0.5, 0.01, 0.01, 0.01)
    folder.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in collapsed))
    for _ in range(2):
        with watch_of(folder, clock, ears) as watch:
            watch.look()
    assert [alert.rule for alert in ears.alerts] == ["entropy_collapse"], "raised once in two sessions"


def test_the_clock_looks_at_a_run_that_calls_nothing(tmp_path: Path) -> None:
    folder, clock, ears = RunFolder(tmp_path), Clock(), Ears()
    watch = watch_of(folder, clock, ears, every_s=0.01, rules={"stall": {"threshold": 1.0}})
    with watch:
        clock.now += 101.0
        while not ears.alerts:
            assert watch._thread.is_alive()
    assert ears.alerts[0].rule == "stall"


def test_an_alert_about_a_full_disk_is_told_though_it_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: RunFolder, alert: Alert) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunFolder, "append_alert", full)
    clock, ears = Clock(), Ears()
    with watch_of(RunFolder(tmp_path), clock, ears, rules={"disk": {"threshold": 1e9, "for_s": 0}}) as watch:
        watch.look()
    assert [alert.rule for alert in ears.alerts] == ["disk"]
    assert "alerts.jsonl cannot be written: No space left on device" in caplog.text
