"""Redundant groups under any order of events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rocknroll.sandbox.errors import SpecInvalid
from rocknroll.sandbox.group import Cancel, Decision, Fate, Group, Launch, Outcome


def started(size: int, wanted: int, **fields: Any) -> Group:
    group = Group(size, wanted, **fields)
    group.start(0.0)
    assert group.take() == [Launch(member) for member in range(size)]
    return group


def test_the_first_to_finish_win_and_the_losers_are_cancelled() -> None:
    group = started(4, 2)
    assert group.finished(2, 1.0)
    assert group.take() == []
    assert group.finished(0, 2.0)
    assert group.take() == [Cancel(1, "others were faster"), Cancel(3, "others were faster")]
    assert (group.outcome, group.winners) == (Outcome.WON, [2, 0])


def test_a_member_that_finishes_late_is_ignored() -> None:
    group = started(2, 1)
    group.finished(0, 1.0)
    group.take()
    assert not group.finished(1, 1.1)
    assert (group.winners, group.take()) == ([0], [])


def test_a_dead_member_is_replaced_while_it_is_needed() -> None:
    group = started(3, 2)
    group.died(1, 1.0, "killed")
    assert group.take() == [Launch(3)]
    group.finished(0, 2.0)
    group.finished(3, 3.0)
    assert group.outcome is Outcome.WON
    group.take()
    group.died(2, 3.1, "killed")
    assert group.take() == []


def test_a_group_gives_up_when_too_few_are_left_to_win() -> None:
    group = started(3, 2, replacements=1)
    group.died(0, 1.0, "killed")
    group.died(1, 2.0, "killed")
    assert group.take() == [Launch(3)]
    assert group.outcome is Outcome.OPEN
    group.died(3, 3.0, "no memory")
    assert group.outcome is Outcome.FAILED
    assert group.reason == "0 of 2 wanted members finished; 3 members died, the last one because: no memory"
    assert [decision.member for decision in group.take()] == [2]


def test_a_slow_member_is_replaced_unless_nobody_can_take_its_place() -> None:
    group = started(2, 2, replacements=1)
    group.suspected(0, 1.0, "slow")
    assert group.take() == [Cancel(0, "slow"), Launch(2)]
    group.suspected(1, 2.0, "slow")
    assert group.take() == []
    assert not group.finished(0, 3.0)
    assert group.finished(1, 3.0)


def test_a_group_fails_at_its_deadline_and_not_before() -> None:
    group = started(2, 1, deadline_s=10.0)
    group.tick(9.9)
    assert group.outcome is Outcome.OPEN
    assert not group.finished(0, 10.0)
    assert group.outcome is Outcome.FAILED
    assert [decision.member for decision in group.take()] == [0, 1]
    assert "deadline" in group.reason


def test_what_was_never_launched_needs_no_cancellation() -> None:
    group = Group(2, 1)
    group.start(0.0)
    group.abandon("changed my mind")
    assert group.take() == []
    group = started(2, 1)
    group.died(0, 1.0, "killed")
    group.finished(1, 1.0)
    assert group.take() == []
    assert group.fates[2] is Fate.CANCELLED


@pytest.mark.parametrize(("size", "wanted"), [(0, 0), (2, 0), (2, 3)])
def test_more_winners_than_members_or_none_are_refused(size: int, wanted: int) -> None:
    with pytest.raises(SpecInvalid):
        Group(size, wanted)


class AnyOrder(RuleBasedStateMachine):
    """Events of any kind, for members of any fate, at any later time."""

    @initialize(
        size=st.integers(1, 6),
        share=st.floats(0, 1),
        replacements=st.none() | st.integers(0, 4),
        deadline_s=st.none() | st.floats(1, 50),
    )
    def open(self, size: int, share: float, replacements: int | None, deadline_s: float | None) -> None:
        wanted = max(1, round(share * size))
        self.group = Group(size, wanted, replacements, deadline_s)
        self.launches = size + (size if replacements is None else replacements)
        self.now_s = 0.0
        self.launched: list[int] = []
        self.cancelled: list[int] = []
        self.dead: set[int] = set()
        self.won: list[int] = []
        self.carry_out()
        self.group.start(self.now_s)

    def carry_out(self) -> list[Decision]:
        decisions = self.group.take()
        for decision in decisions:
            match decision:
                case Launch(member):
                    self.launched.append(member)
                case Cancel(member, reason):
                    assert member in self.launched
                    assert reason
                    self.cancelled.append(member)
        return decisions

    @rule()
    def look(self) -> None:
        self.carry_out()

    @rule(wait_s=st.floats(0, 5))
    def time_passes(self, wait_s: float) -> None:
        self.now_s += wait_s
        self.group.tick(self.now_s)

    @rule(data=st.data(), event=st.sampled_from(["finished", "finished", "died", "suspected"]))
    @precondition(lambda self: self.launched)
    def something_happens(self, data: st.DataObject, event: str) -> None:
        member = data.draw(st.sampled_from(self.launched))
        was_over = self.group.outcome is not Outcome.OPEN
        was_running = self.group.fates[member] is Fate.RUNNING
        before = len(self.group.take.__self__._decisions)
        if event == "finished":
            if self.group.finished(member, self.now_s):
                self.won.append(member)
                assert was_running
        elif event == "died":
            self.group.died(member, self.now_s, "killed")
            if self.group.fates[member] is Fate.DIED:
                self.dead.add(member)
        else:
            self.group.suspected(member, self.now_s, "slow")
        if was_over:
            assert len(self.group._decisions) == before

    @rule()
    @precondition(lambda self: self.launched)
    def abandoned(self) -> None:
        if len(self.launched) > 4:
            self.group.abandon("no use")

    @invariant()
    def holds(self) -> None:
        group = getattr(self, "group", None)
        if group is None:
            return
        assert len(group.running) <= group.size
        assert len(group.running) + len(group.winners) <= group.size or group.outcome is not Outcome.OPEN
        assert len(self.cancelled) == len(set(self.cancelled))
        assert len(self.launched) == len(set(self.launched)) <= self.launches
        assert group.winners == self.won
        assert not set(self.won) & (set(self.cancelled) | self.dead)
        if group.outcome is Outcome.WON:
            assert len(group.winners) == group.wanted
        elif group.outcome is Outcome.OPEN:
            assert len(group.winners) < group.wanted <= len(group.winners) + len(group.running)
        else:
            assert len(group.winners) < group.wanted
            assert group.reason

    def teardown(self) -> None:
        if not hasattr(self, "group"):
            return
        self.carry_out()
        if self.group.outcome is Outcome.OPEN:
            for member in self.group.running:
                self.group.finished(member, 0.0)
        self.carry_out()
        if self.group.outcome is not Outcome.OPEN:
            # Everyone who was launched has come to exactly one end.
            winners, cancelled = set(self.group.winners), set(self.cancelled)
            assert set(self.launched) == winners | cancelled | self.dead
            assert not winners & cancelled
            assert self.group.running == []


AnyOrder.TestCase.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
test_any_order_of_events = AnyOrder.TestCase
