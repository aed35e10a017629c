"""A node that the fleet takes for gone has ended its sandboxes by then, whatever the network did to the pings."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocknroll.sandbox.node_lease import NodeHealth, NodeLease, NodePolicy, Standing

POLICY = NodePolicy(interval_s=1.0, timeout_s=2.0, failures=3, ttl_s=10.0, drift=0.1)


def health(clock_s: float = 0.0, now_s: float = 0.0) -> NodeHealth:
    return NodeHealth(POLICY, clock_s, now_s)


def test_one_missed_ping_makes_suspect_and_two_answers_active_again() -> None:
    node = health()
    node.missed()
    assert node.standing is Standing.SUSPECT
    node.answered(1.0, 1.0)
    assert node.standing is Standing.SUSPECT
    node.answered(2.0, 2.0)
    assert node.standing is Standing.ACTIVE


def test_a_node_that_does_not_answer_is_no_longer_renewed_and_lost_in_the_end() -> None:
    node, now_s = health(), 0.0
    for _ in range(POLICY.failures):
        now_s += 3.0
        last = node.renewal(now_s)
        node.missed()
    assert last == now_s + POLICY.ttl_s
    assert node.renewal(now_s + 3.0) == last
    node.tick(now_s + 10.9)
    assert node.standing is Standing.SUSPECT
    node.tick(now_s + 11.0)
    assert node.standing is Standing.LOST


def test_a_node_that_answers_in_time_is_renewed_again() -> None:
    node = health()
    for now_s in (3.0, 6.0, 9.0):
        node.renewal(now_s)
        node.missed()
    node.answered(12.0, 12.0)
    assert node.renewal(13.0) == 13.0 + POLICY.ttl_s


def test_a_lost_node_does_not_come_back() -> None:
    node = health()
    node.gone()
    node.answered(1.0, 1.0)
    node.answered(2.0, 2.0)
    assert node.standing is Standing.LOST


def test_an_expired_lease_is_never_renewed() -> None:
    lease = NodeLease(10.0)
    assert lease.renew(20.0, 9.9) and lease.deadline_s == 20.0
    assert lease.renew(15.0, 10.0) and lease.deadline_s == 20.0
    assert not lease.in_force(20.0)
    assert not lease.renew(40.0, 20.1) and not lease.in_force(5.0)


def test_a_lease_shorter_than_the_pings_that_may_be_missed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ttl_s=9 is not longer than the 3 pings of 3 s"):
        NodePolicy(interval_s=1.0, timeout_s=2.0, failures=3, ttl_s=9.0)


@dataclass
class Node:
    """The other side, on a clock of its own that goes at `rate` and began at `offset_s`."""

    offset_s: float
    rate: float

    def __post_init__(self) -> None:
        self.lease = NodeLease(self.clock(0.0) + POLICY.ttl_s)

    def clock(self, now_s: float) -> float:
        return self.offset_s + self.rate * now_s


delays = st.lists(
    st.one_of(
        st.tuples(st.floats(0.0, 1.9), st.floats(0.0, 1.9)),
        st.tuples(st.floats(0.0, 60.0), st.one_of(st.none(), st.floats(0.0, 60.0))),
        st.tuples(st.none(), st.none()),
    ),
    min_size=1,
    max_size=40,
)


@given(delays, st.floats(-1e6, 1e6), st.floats(0.97, 1.0))
def test_when_the_fleet_gives_a_node_up_its_lease_has_run_out(
    delays: list[tuple[float | None, float | None]], offset_s: float, rate: float
) -> None:
    """Pings and answers are lost or late at will, also by longer than a lease; the node's clock goes slow."""
    node = Node(offset_s, rate)
    watched = NodeHealth(POLICY, node.clock(0.0), 0.0)
    arrivals: list[tuple[float, float]] = []
    now_s = 0.0
    for there_s, back_s in [*delays, *[(None, None)] * 12]:
        deadline_s = watched.renewal(now_s)
        if there_s is not None:
            arrivals.append((now_s + there_s, deadline_s))
        if there_s is not None and back_s is not None and there_s + back_s < POLICY.timeout_s:
            clock_s, now_s = node.clock(now_s + there_s), now_s + there_s + back_s
            watched.answered(clock_s, now_s)
        else:
            now_s += POLICY.timeout_s
            watched.missed()
        now_s += POLICY.interval_s
        watched.tick(now_s)
        if watched.standing is Standing.LOST:
            break
    assert watched.standing is Standing.LOST
    for at_s, deadline_s in sorted(arrivals):
        if at_s < watched.fenced_s:
            node.lease.renew(deadline_s, node.clock(at_s))
    assert not node.lease.in_force(node.clock(watched.fenced_s))
