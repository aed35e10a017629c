"""The pool under a virtual clock, and under any order of events."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rocknroll.sandbox.decisions import Decision, Discard, Note, Probe, Revoke, Start
from rocknroll.sandbox.errors import LeaseLost
from rocknroll.sandbox.lease import Lease
from rocknroll.sandbox.lifecycle import LIVE, State
from rocknroll.sandbox.pool import TRIM_AFTER_S, Pool
from rocknroll.sandbox.spec import HealthPolicy, RestartPolicy, SandboxSpec


def make_pool(size: int = 1, max_starting: int = 8, ready: int | None = None, **fields: Any) -> Pool:
    return Pool(SandboxSpec(name="box", **fields), size, max_starting, random.Random(0), ready=ready)


def started(pool: Pool, now_s: float = 0.0) -> list[Decision]:
    """Tick, and let every start that was decided succeed."""
    pool.tick(now_s)
    decisions = pool.take()
    for decision in decisions:
        if isinstance(decision, Start):
            assert pool.started(decision.sandbox_id, decision.generation, now_s)
    return decisions


def take(pool: Pool, kind: type) -> list[Any]:
    return [decision for decision in pool.take() if isinstance(decision, kind)]


def fail_once(pool: Pool, now_s: float) -> None:
    pool.tick(now_s)
    for start in take(pool, Start):
        pool.start_failed(start.sandbox_id, start.generation, now_s, "boom")


def test_no_more_starts_at_once_than_allowed() -> None:
    pool = make_pool(size=10, max_starting=3)
    pool.tick(0.0)
    starts = take(pool, Start)
    assert len(starts) == 3
    pool.tick(0.1)
    assert take(pool, Start) == []
    pool.started(starts[0].sandbox_id, 1, 0.2)
    pool.tick(0.2)
    assert len(take(pool, Start)) == 1


def test_an_instance_refuses_tokens_from_before_its_start() -> None:
    pool = make_pool()
    started(pool)
    lease = pool.grant("me", 10.0, 0.0)
    assert lease is not None
    pool.lost("box-0", 1, 1.0, "killed")
    pool.tick(1.0)
    assert take(pool, Start)[0].floor > lease.token


def test_an_expired_lease_is_reclaimed_and_the_sandbox_is_fresh_whatever_the_spec_says() -> None:
    pool = make_pool(reuse="reset")
    started(pool)
    lease = pool.grant("sleepy", 10.0, 0.0)
    assert lease is not None
    pool.tick(9.9)
    assert pool.members["box-0"].state is State.LEASED
    pool.tick(10.0)
    decisions = pool.take()
    assert Discard("box-0", 1) in decisions
    assert [decision.lease for decision in decisions if isinstance(decision, Revoke)] == [lease]
    assert Note("box-0", "lease_expired", "sleepy") in decisions
    assert any(isinstance(decision, Start) and decision.generation == 2 for decision in decisions)
    with pytest.raises(LeaseLost):
        pool.heartbeat("box-0", lease.token, 10.0)
    with pytest.raises(LeaseLost):
        pool.release("box-0", lease.token, 10.0, recycle=False)


@pytest.mark.parametrize(
    ("reuse", "recycle", "fresh"), [("reset", False, False), ("reset", True, True), ("fresh", False, True)]
)
def test_a_released_sandbox_is_kept_only_with_reset_and_without_complaint(
    reuse: str, recycle: bool, fresh: bool
) -> None:
    pool = make_pool(reuse=reuse)
    started(pool)
    lease = pool.grant("me", 10.0, 0.0)
    assert lease is not None
    pool.take()
    pool.release("box-0", lease.token, 1.0, recycle)
    assert bool(take(pool, Discard)) is fresh
    assert pool.members["box-0"].state is (State.RESTARTING if fresh else State.READY)


def test_wanted_recycling_is_no_failure() -> None:
    pool = make_pool(restart=RestartPolicy(limit=2))
    for round_number in range(10):
        started(pool, float(round_number))
        lease = pool.grant("me", 10.0, float(round_number))
        assert lease is not None
        pool.release("box-0", lease.token, float(round_number), recycle=True)
    assert pool.members["box-0"].state is State.RESTARTING


def test_one_missed_probe_makes_suspect_and_an_answer_brings_it_back() -> None:
    pool = make_pool(health=HealthPolicy(interval_s=1.0, failures=2, window=3))
    started(pool)
    pool.tick(1.0)
    assert take(pool, Probe) == [Probe("box-0", 1)]
    pool.probed("box-0", 1, False, 1.0)
    assert pool.members["box-0"].state is State.SUSPECT
    assert pool.grant("me", 1.0, 1.0) is None
    pool.probed("box-0", 1, True, 1.3)
    assert pool.members["box-0"].state is State.READY


def test_a_suspect_keeps_its_holder() -> None:
    pool = make_pool()
    started(pool)
    lease = pool.grant("me", 100.0, 0.0)
    pool.probed("box-0", 1, False, 1.0)
    assert pool.members["box-0"].lease == lease
    pool.probed("box-0", 1, True, 2.0)
    assert pool.members["box-0"].state is State.LEASED


def test_n_of_m_missed_probes_make_dead_even_with_answers_between() -> None:
    pool = make_pool(health=HealthPolicy(failures=2, window=3))
    started(pool)
    for ok in (False, True):
        pool.probed("box-0", 1, ok, 1.0)
    assert pool.members["box-0"].state is State.READY
    pool.probed("box-0", 1, False, 1.0)
    assert pool.members["box-0"].state is State.DEAD


def test_back_off_grows_to_its_limit_with_jitter() -> None:
    policy = RestartPolicy(backoff_s=1.0, backoff_limit_s=10.0, jitter=0.5, limit=100, window_s=1e9)
    pool = make_pool(restart=policy)
    waits, now_s = [], 0.0
    for _ in range(8):
        fail_once(pool, now_s)
        wakeup_s = pool.next_wakeup_s()
        assert wakeup_s is not None
        waits.append(wakeup_s - now_s)
        pool.tick(wakeup_s - 1e-9)
        assert pool.members["box-0"].state is State.DEAD or waits[-1] == 0
        now_s = wakeup_s
    assert waits[0] == 0
    for wait_s, full_s in zip(waits[1:], [1, 2, 4, 8, 10, 10, 10], strict=True):
        assert full_s / 2 <= wait_s <= full_s
    assert len(set(waits[-3:])) == 3


def test_too_many_failures_in_a_window_quarantine_and_say_why() -> None:
    pool = make_pool(restart=RestartPolicy(limit=3, window_s=100.0, backoff_s=0.0))
    for now_s in (0.0, 1.0, 2.0):
        assert pool.exhausted() == ""
        fail_once(pool, now_s)
    assert pool.members["box-0"].state is State.QUARANTINED
    assert pool.exhausted() == "boom"
    pool.tick(1e6)
    assert take(pool, Start) == []


def test_failures_that_are_far_apart_do_not_quarantine() -> None:
    pool = make_pool(restart=RestartPolicy(limit=3, window_s=100.0, backoff_s=0.0))
    for now_s in (0.0, 60.0, 120.0, 180.0, 240.0):
        fail_once(pool, now_s)
    assert pool.members["box-0"].state is not State.QUARANTINED


def test_an_operator_brings_a_sandbox_out_of_quarantine() -> None:
    pool = make_pool(restart=RestartPolicy(limit=1))
    fail_once(pool, 0.0)
    assert pool.members["box-0"].state is State.QUARANTINED
    pool.restart("box-0", 1.0)
    started(pool, 1.0)
    assert pool.members["box-0"].state is State.READY


def test_a_permanent_error_before_any_success_condemns_the_pool_at_once() -> None:
    pool = make_pool(size=5, max_starting=2)
    pool.tick(0.0)
    first, second = take(pool, Start)
    pool.start_failed(first.sandbox_id, 1, 0.0, "no module named nowhere", permanent=True)
    assert pool.exhausted() == ""
    pool.start_failed(second.sandbox_id, 1, 0.0, "no module named nowhere", permanent=True)
    assert pool.exhausted() == "no module named nowhere"


def test_reports_of_an_instance_that_was_given_up_are_ignored() -> None:
    pool = make_pool()
    started(pool)
    pool.lost("box-0", 1, 1.0, "killed")
    started(pool, 1.0)
    pool.lost("box-0", 1, 2.0, "killed again")
    pool.probed("box-0", 1, False, 2.0)
    assert pool.members["box-0"].state is State.READY
    assert not pool.started("box-0", 1, 2.0)


def states(pool: Pool) -> list[State]:
    return [member.state for member in pool.members.values()]


def test_only_as_many_as_are_wanted_ready_are_started() -> None:
    pool = make_pool(size=5, ready=2)
    started(pool)
    assert states(pool).count(State.READY) == 2
    assert pool.grant("me", 100.0, 0.0) is not None
    started(pool, 1.0)
    assert (states(pool).count(State.READY), states(pool).count(State.LEASED)) == (2, 1)


def test_those_who_wait_are_started_for_beyond_the_ready_ones() -> None:
    pool = make_pool(size=5, ready=0)
    started(pool)
    assert State.READY not in states(pool)
    pool.waiting = 2
    started(pool, 1.0)
    assert states(pool).count(State.READY) == 2


def test_instances_beyond_the_wanted_ones_go_after_a_while_and_no_sooner() -> None:
    pool = make_pool(size=3, ready=1, reuse="reset")
    leases = []
    for now_s in (0.0, 1.0, 2.0):
        started(pool, now_s)
        lease = pool.grant("me", 1e6, now_s)
        assert lease is not None
        leases.append(lease)
    for lease in leases:
        pool.release(lease.sandbox_id, lease.token, 3.0, recycle=False)
    pool.tick(3.0)
    assert pool.next_wakeup_s() is not None
    pool.tick(3.0 + TRIM_AFTER_S - 0.1)
    assert states(pool).count(State.READY) == 3
    pool.tick(3.0 + TRIM_AFTER_S)
    pool.tick(3.0 + TRIM_AFTER_S + 1)
    assert states(pool).count(State.READY) == 1


def test_a_shrunken_pool_waits_for_its_holders_and_a_grown_one_starts_more() -> None:
    pool = make_pool(size=2, reuse="reset")
    started(pool)
    held = [pool.grant("me", 1e6, 0.0), pool.grant("me", 1e6, 0.0)]
    lease = next(lease for lease in held if lease is not None and lease.sandbox_id == "box-1")
    pool.resize(1, None, 1.0)
    pool.tick(1.0)
    assert set(pool.members) == {"box-0", "box-1"}
    pool.release("box-1", lease.token, 2.0, recycle=False)
    pool.take()
    pool.tick(2.0)
    assert set(pool.members) == {"box-0"}
    assert Discard("box-1", 1) in pool.take()
    pool.resize(3, None, 3.0)
    started(pool, 3.0)
    assert states(pool) == [State.LEASED, State.READY, State.READY]


def test_a_daemon_that_is_away_is_waited_for_and_blames_nobody() -> None:
    pool = make_pool(restart=RestartPolicy(limit=2, backoff_s=0.0))
    started(pool)
    pool.lost("box-0", 1, 1.0, "the daemon restarts")
    for now_s in range(1, 20):
        pool.tick(float(now_s))
        for start in take(pool, Start):
            pool.unavailable(start.sandbox_id, start.generation, float(now_s), "no daemon")
    assert pool.members["box-0"].state is State.DEAD
    assert pool.members["box-0"].last_error == "no daemon"
    started(pool, 20.0)
    assert pool.members["box-0"].state is State.READY


def test_a_daemon_that_was_never_there_condemns_the_pool() -> None:
    pool = make_pool()
    pool.tick(0.0)
    (start,) = take(pool, Start)
    pool.unavailable(start.sandbox_id, start.generation, 0.0, "no daemon")
    assert pool.exhausted() == "no daemon"


def test_an_adopted_sandbox_goes_on_under_its_lease_and_generation() -> None:
    pool = make_pool(size=3)
    pool.remember("box-0", 7, 3, "once killed", quarantined=False)
    pool.remember("box-1", 2, 0, "", quarantined=False)
    pool.remember("box-2", 9, 8, "no disk", quarantined=True)
    lease = Lease("lease-5", "box-0", "me", 5, 60.0, 0.0, 100.0)
    pool.adopt("box-0", lease, 100.0)
    pool.adopt("box-1", None, 100.0)
    pool.tick(100.0)
    assert states(pool) == [State.LEASED, State.READY, State.QUARANTINED]
    assert {(p.sandbox_id, p.generation) for p in take(pool, Probe)} == {("box-0", 7), ("box-1", 2)}
    assert pool.heartbeat("box-0", 5, 101.0).deadline_s == 161.0
    pool.lost("box-0", 7, 102.0, "killed")
    pool.tick(102.0)
    assert [start.generation for start in take(pool, Start)] == [8]


def test_why_an_instance_died_is_kept_with_how_it_was_noticed() -> None:
    pool = make_pool()
    started(pool)
    pool.lost("box-0", 1, 1.0, "its socket closed")
    pool.tick(1.0)
    pool.explained("box-0", 1, "out of memory")
    assert pool.members["box-0"].last_error == "its socket closed; out of memory"
    assert Note("box-0", "autopsy", "out of memory") in pool.take()


class AnyOrder(RuleBasedStateMachine):
    """Starts, deaths, probes, leases and time in any order."""

    @initialize(size=st.integers(1, 4), starting=st.integers(1, 4), reuse=st.sampled_from(["fresh", "reset"]))
    def begin(self, size: int, starting: int, reuse: str) -> None:
        self.starting = starting
        self.now_s = 0.0
        self.pool = make_pool(
            size,
            starting,
            reuse=reuse,
            health=HealthPolicy(interval_s=1.0, failures=2, window=3),
            restart=RestartPolicy(limit=4, window_s=50.0),
        )
        self.starts: list[Start] = []
        self.instances: set[tuple[str, int]] = set()
        self.probes: list[Probe] = []
        self.leases: list[Lease] = []
        self.tokens: list[int] = []
        self.history: dict[str, list[State]] = defaultdict(lambda: [State.STARTING])
        self.settle()

    def settle(self) -> None:
        self.pool.tick(self.now_s)
        for decision in self.pool.take():
            match decision:
                case Start(name, generation, floor):
                    self.starts.append(decision)
                    self.tokens.append(floor)
                case Discard(name, generation):
                    self.instances.discard((name, generation))
                    self.starts = [s for s in self.starts if (s.sandbox_id, s.generation) != (name, generation)]
                case Probe():
                    self.probes.append(decision)
                case Revoke(lease):
                    self.leases = [held for held in self.leases if held.token != lease.token]
        for name in self.history.keys() - self.pool.members.keys():
            del self.history[name]
        for name, member in self.pool.members.items():
            self.history[name].append(member.state)

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.settle()

    @precondition(lambda self: self.starts)
    @rule(data=st.data(), ok=st.booleans())
    def finish_start(self, data: st.DataObject, ok: bool) -> None:
        start = data.draw(st.sampled_from(self.starts))
        self.starts.remove(start)
        if ok:
            assert self.pool.started(start.sandbox_id, start.generation, self.now_s)
            self.instances.add((start.sandbox_id, start.generation))
        else:
            self.pool.start_failed(start.sandbox_id, start.generation, self.now_s, "boom")
        self.settle()

    @precondition(lambda self: self.starts)
    @rule(data=st.data())
    def miss_the_daemon(self, data: st.DataObject) -> None:
        start = data.draw(st.sampled_from(self.starts))
        self.starts.remove(start)
        self.pool.unavailable(start.sandbox_id, start.generation, self.now_s, "no daemon")
        self.settle()

    @rule(size=st.integers(1, 6), ready=st.none() | st.integers(0, 3), waiting=st.integers(0, 2))
    def scale(self, size: int, ready: int | None, waiting: int) -> None:
        self.pool.resize(size, ready, self.now_s)
        self.pool.waiting = waiting
        self.settle()
        assert sum(not member.leaving for member in self.pool.members.values()) == size

    @precondition(lambda self: self.instances)
    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        name, generation = data.draw(st.sampled_from(sorted(self.instances)))
        self.pool.lost(name, generation, self.now_s, "killed")
        self.settle()

    @precondition(lambda self: self.probes)
    @rule(data=st.data(), ok=st.booleans())
    def answer_probe(self, data: st.DataObject, ok: bool) -> None:
        probe = data.draw(st.sampled_from(self.probes))
        self.probes.remove(probe)
        self.pool.probed(probe.sandbox_id, probe.generation, ok, self.now_s)
        self.settle()

    @rule(ttl_s=st.floats(0.1, 30))
    def lease(self, ttl_s: float) -> None:
        lease = self.pool.grant("me", ttl_s, self.now_s)
        if lease is not None:
            self.leases.append(lease)
            self.tokens.append(lease.token)
        self.settle()

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), recycle=st.booleans())
    def release(self, data: st.DataObject, recycle: bool) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        self.leases.remove(lease)
        self.pool.release(lease.sandbox_id, lease.token, self.now_s, recycle)
        self.settle()

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        assert self.pool.heartbeat(lease.sandbox_id, lease.token, self.now_s).deadline_s == pytest.approx(
            self.now_s + lease.ttl_s
        )

    @invariant()
    def tokens_only_grow(self) -> None:
        assert all(earlier < later for earlier, later in pairwise(getattr(self, "tokens", [])))

    @invariant()
    def live_means_an_instance_and_nothing_else_does(self) -> None:
        if hasattr(self, "pool"):
            live = {(m.id, m.generation) for m in self.pool.members.values() if m.state in LIVE}
            assert live == self.instances

    @invariant()
    def a_sandbox_has_one_holder_and_only_while_it_lives(self) -> None:
        if hasattr(self, "pool"):
            held = {m.lease.token for m in self.pool.members.values() if m.lease is not None}
            assert held == {lease.token for lease in self.leases}
            assert all(m.state in LIVE for m in self.pool.members.values() if m.lease is not None)
            assert all(m.lease is not None for m in self.pool.members.values() if m.state is State.LEASED)

    @invariant()
    def starts_are_bounded(self) -> None:
        if hasattr(self, "pool"):
            assert len(self.starts) <= self.starting

    @invariant()
    def dead_is_followed_by_a_restart_or_quarantine(self) -> None:
        for states in getattr(self, "history", {}).values():
            for earlier, later in pairwise(states):
                if earlier is State.DEAD:
                    assert later in (State.DEAD, State.RESTARTING, State.QUARANTINED)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
