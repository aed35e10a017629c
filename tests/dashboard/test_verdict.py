"""The verdict says the worst that is true, and why; whatever the snapshot."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pretence import ALERT, NOW, WHY, fleet, run, sandboxes

from rocknroll.dashboard.snapshot import AlertFacts, FleetFacts, PoolFacts, RunFacts, SandboxFacts, Snapshot
from rocknroll.dashboard.verdict import LEAST_STALL_S, STALL_INTERVALS, Level, judge
from rocknroll.sandbox.lifecycle import State

TEXT = st.text("ab1 \n\x1b\u202e", max_size=6)
TIME = st.floats(NOW - 1e5, NOW)
STATES = st.sampled_from([state.value for state in State])
SANDBOX = st.builds(SandboxFacts, id=TEXT, pool=TEXT, state=STATES, last_error=st.none() | TEXT, since=st.none() | TIME)
POOL = st.builds(
    PoolFacts,
    name=TEXT,
    runtime=TEXT,
    size=st.integers(1, 9),
    ready=st.none() | st.integers(0, 9),
    states=st.dictionaries(STATES, st.integers(0, 9)),
    waiting=st.integers(0, 3),
    exhausted=st.none() | TEXT,
)
ALERTS = st.lists(
    st.builds(
        AlertFacts,
        rule=st.sampled_from(["stall", "stalled_queue", "crash_loop", "disk"]),
        subject=TEXT,
        severity=st.sampled_from(["warning", "critical"]),
        since=TIME,
        text=TEXT,
        resolved=st.none() | TIME,
    ),
    max_size=3,
).map(tuple)
FLEET = st.builds(
    FleetFacts,
    address=TEXT,
    began=TIME,
    pools=st.lists(POOL, min_size=1, max_size=3).map(tuple),
    sandboxes=st.lists(SANDBOX, max_size=5).map(tuple),
    alerts=ALERTS,
)
RUN = st.builds(
    RunFacts,
    name=TEXT,
    path=TEXT,
    state=st.sampled_from(["running", "finished", "stopped"]),
    iterations=st.integers(1, 99),
    alerts=ALERTS,
    updated=st.none() | TIME,
    interval_s=st.none() | st.floats(0, 1e4),
)
SNAPSHOT = st.builds(Snapshot, at=st.just(NOW), fleet=st.none() | FLEET, run=st.none() | RUN, away=TEXT)

FEW = settings(max_examples=60)


def well() -> Snapshot:
    return Snapshot(NOW, fleet(sandboxes(4)), run())


def test_a_fleet_and_a_run_that_work_are_healthy() -> None:
    verdict = judge(well())
    assert (str(verdict), verdict.reasons) == ("healthy", ())


@FEW
@given(SNAPSHOT)
def test_only_what_is_healthy_has_no_reason(snapshot: Snapshot) -> None:
    verdict = judge(snapshot)
    assert (verdict.level is Level.HEALTHY) == (not verdict.reasons)
    assert all(reason.isprintable() and "\n" not in reason for reason in verdict.reasons)


@FEW
@given(SNAPSHOT)
def test_nothing_to_look_at_is_down(snapshot: Snapshot) -> None:
    if snapshot.fleet is None and snapshot.run is None:
        assert judge(snapshot).level is Level.DOWN


@FEW
@given(SNAPSHOT, st.sampled_from(["QUARANTINED", "DEAD", "SUSPECT"]))
def test_one_more_sandbox_in_trouble_never_makes_it_better(snapshot: Snapshot, state: str) -> None:
    if snapshot.fleet is None:
        return
    more = (*snapshot.fleet.sandboxes, SandboxFacts("extra", "box", state))
    worse = judge(replace(snapshot, fleet=replace(snapshot.fleet, sandboxes=more)))
    assert worse.level >= max(judge(snapshot).level, Level.DEGRADED)
    assert any(state in reason for reason in worse.reasons)


@FEW
@given(SNAPSHOT, ALERTS)
def test_alerts_make_it_worse_until_they_are_over(snapshot: Snapshot, alerts: tuple[AlertFacts, ...]) -> None:
    if snapshot.run is None:
        return
    quiet = replace(snapshot, run=replace(snapshot.run, alerts=()))
    over = tuple(replace(alert, resolved=NOW) for alert in alerts)
    assert judge(replace(quiet, run=replace(quiet.run, alerts=over))) == judge(quiet)
    assert judge(replace(quiet, run=replace(quiet.run, alerts=alerts))).level >= judge(quiet).level


@FEW
@given(FLEET, st.randoms(use_true_random=False))
def test_the_order_of_sandboxes_does_not_matter(found: FleetFacts, random: object) -> None:
    other = replace(found, sandboxes=found.sandboxes[::-1], pools=found.pools[::-1])
    assert judge(Snapshot(NOW, found)).level is judge(Snapshot(NOW, other)).level


def test_the_one_that_is_ill_is_named_with_its_error() -> None:
    verdict = judge(Snapshot(NOW, fleet(sandboxes(200, ill=137))))
    assert verdict.level is Level.DEGRADED
    assert verdict.reasons == (f"1 of 200 sandboxes is QUARANTINED (box-137: {WHY})",)


@pytest.mark.parametrize(
    ("silent_s", "level"), [(LEAST_STALL_S - 1, Level.HEALTHY), (LEAST_STALL_S + 1, Level.STALLED)]
)
def test_a_quick_run_is_stalled_after_the_least_time(silent_s: float, level: Level) -> None:
    assert judge(Snapshot(NOW, run=run(interval_s=1.0, updated=NOW - silent_s))).level is level


@pytest.mark.parametrize(("factor", "level"), [(0.9, Level.HEALTHY), (1.1, Level.STALLED)])
def test_a_slow_run_is_stalled_after_several_of_its_intervals(factor: float, level: Level) -> None:
    silent_s = factor * STALL_INTERVALS * 300.0
    assert judge(Snapshot(NOW, run=run(interval_s=300.0, updated=NOW - silent_s))).level is level


def test_a_finished_run_may_be_silent_for_ever() -> None:
    assert judge(Snapshot(NOW, run=run(state="finished", updated=NOW - 1e6))).level is Level.HEALTHY


def test_a_run_that_stopped_says_how_to_go_on() -> None:
    verdict = judge(Snapshot(NOW, run=run(state="stopped")))
    assert verdict.level is Level.STALLED and "roll train --resume runs/alfworld" in verdict.reasons[0]


def test_callers_that_wait_for_nothing_are_a_stall() -> None:
    starved = (PoolFacts("box", "process", 2, None, {"QUARANTINED": 2}, waiting=3),)
    verdict = judge(Snapshot(NOW, fleet(sandboxes(2), pools=starved)))
    assert verdict.level is Level.STALLED and verdict.reasons[0].startswith("3 callers wait for pool box")


def test_a_fleet_none_of_whose_pools_can_start_is_down() -> None:
    hopeless = PoolFacts("box", "process", 2, None, {"QUARANTINED": 2}, exhausted="no such module")
    assert judge(Snapshot(NOW, fleet(sandboxes(2), pools=(hopeless,)))).level is Level.DOWN
    other = PoolFacts("other", "process", 2, None, {"READY": 2})
    assert judge(Snapshot(NOW, fleet(sandboxes(2), pools=(hopeless, other)))).level is Level.DEGRADED


def test_an_alert_is_a_reason() -> None:
    verdict = judge(Snapshot(NOW, fleet(sandboxes(2), alerts=(ALERT,))))
    assert verdict.level is Level.DEGRADED and "again and again" in str(verdict)
