"""Leases under a virtual clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocknroll.sandbox.errors import LeaseLost
from rocknroll.sandbox.lease import Tokens, grant, heartbeat

times = st.floats(min_value=0, max_value=1e6)
ttls = st.floats(min_value=0.01, max_value=1e4)


@given(st.integers(min_value=0, max_value=10**9), st.lists(st.text(max_size=3), min_size=2, max_size=20))
def test_tokens_only_grow(last: int, owners: list[str]) -> None:
    durable: list[int] = []
    tokens = Tokens(last, durable.append)
    granted = [grant(tokens, "box", owner, 1.0, 0.0).token for owner in owners]
    assert granted == sorted(set(granted))
    assert granted[0] > last
    assert durable == granted


def test_a_token_that_cannot_be_written_down_is_not_given_out() -> None:
    full = True

    def remember(token: int) -> None:
        if full:
            raise OSError("disk full")

    tokens = Tokens(7, remember)
    with pytest.raises(OSError, match="full"):
        tokens.next()
    full = False
    assert tokens.next() == 8


@given(times, ttls, st.floats(min_value=0, max_value=2))
def test_the_holder_extends_until_the_deadline_and_never_after(now_s: float, ttl_s: float, share: float) -> None:
    lease = grant(Tokens(), "box", "me", ttl_s, now_s)
    later_s = now_s + ttl_s * share
    if lease.expired(later_s):
        with pytest.raises(LeaseLost, match="expired"):
            heartbeat(lease, lease.token, later_s)
    else:
        assert heartbeat(lease, lease.token, later_s).deadline_s == later_s + ttl_s


def test_only_the_holders_token_extends() -> None:
    tokens = Tokens()
    old = grant(tokens, "box", "old", 10.0, 0.0)
    new = grant(tokens, "box", "new", 10.0, 0.0)
    with pytest.raises(LeaseLost, match="new does"):
        heartbeat(new, old.token, 1.0)
    with pytest.raises(LeaseLost):
        heartbeat(None, new.token, 1.0)


def test_the_holder_may_change_the_time_to_live() -> None:
    lease = grant(Tokens(), "box", "me", 10.0, 0.0)
    assert heartbeat(lease, lease.token, 5.0, ttl_s=100.0).deadline_s == 105.0


def test_looking_renews_nothing() -> None:
    lease = grant(Tokens(), "box", "me", 10.0, 0.0)
    assert not lease.expired(9.9)
    assert lease.expired(10.0)
