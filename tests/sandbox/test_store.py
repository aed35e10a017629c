"""What the fleet remembers, and what it says when it cannot."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

import pytest

from rocknroll.sandbox.errors import StoreFailed
from rocknroll.sandbox.lease import Lease
from rocknroll.sandbox.store import SandboxRow, Store

ROW = SandboxRow("box-0", "box", "here", "abc", "READY", 3, 1, "once killed", {"secret": "s", "pid": 7})
LEASE = Lease("lease-1", "box-0", "me", 1, 60.0, 0.0, 0.0)


def test_a_second_store_on_the_same_file_finds_everything(tmp_path: Path) -> None:
    first = Store(tmp_path / "fleet.db")
    first.put_sandbox(ROW)
    first.begin_lease(LEASE, 100.0, "12:34")
    first.extend_lease(1, 30.0, 200.0)
    first.add_event("box-0", "started", "")
    token = first.tokens.next()
    second = Store(tmp_path / "fleet.db")
    assert second.fleet_id == first.fleet_id
    assert second.sandboxes("box") == [ROW]
    assert second.sandboxes("other") == []
    (lease,) = second.open_leases()
    assert (lease.owner, lease.process, lease.ttl_s, lease.deadline) == ("me", "12:34", 30.0, 200.0)
    assert [event.kind for event in second.events()] == ["started"]
    assert second.tokens.next() > token


def test_how_a_lease_ended_first_is_how_it_ended() -> None:
    store = Store()
    store.begin_lease(LEASE, 100.0)
    store.end_lease(1, "released")
    store.end_lease(1, "expired")
    row = store.lease(1)
    assert row is not None and row.outcome == "released"
    assert store.open_leases() == []
    assert store.lease(2) is None


def test_a_slot_that_is_gone_is_forgotten() -> None:
    store = Store()
    store.put_sandbox(ROW)
    store.forget_sandbox("box-0")
    assert store.sandboxes("box") == []


def test_only_its_user_may_read_it_for_it_holds_secrets(tmp_path: Path) -> None:
    Store(tmp_path / "fleet.db").put_sandbox(ROW)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_a_file_of_another_layout_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "fleet.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE things(id)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(StoreFailed, match="layout 0"):
        Store(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"not a database" * 100], ids=["a folder that is not there", "garbage"])
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "fleet.db" if content else tmp_path / "missing" / "fleet.db"
    if content:
        path.write_bytes(content)
    with pytest.raises(StoreFailed, match="fleet"):
        Store(path)


def test_a_full_disk_is_a_typed_error_and_no_token_is_given_out() -> None:
    store = Store()
    last = store.tokens.next()
    store._db.execute("PRAGMA max_page_count = 1")
    with pytest.raises(StoreFailed, match="full"):
        store.add_event("box-0", "started", "x" * 1_000_000)
    store._db.execute("PRAGMA query_only = 1")
    with pytest.raises(StoreFailed):
        store.tokens.next()
    store._db.execute("PRAGMA query_only = 0")
    assert store.tokens.next() == last + 1
