"""Sites: several pools under one manager, one record, one lock."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playthings import descendants

from rocknroll.sandbox.errors import (
    AmbiguousId,
    FleetExhausted,
    LeaseLost,
    LeaseTimeout,
    NotFound,
    SocketPathTooLong,
    StateLocked,
    StoreFailed,
)
from rocknroll.sandbox.fleetfile import parse_fleet
from rocknroll.sandbox.site import HIDDEN, Site
from rocknroll.sandbox.state_folder import StateFolder

pytestmark = pytest.mark.asyncio
MakeSite = Callable[..., Site]


@pytest.fixture
def make_site(folder: Path) -> MakeSite:
    def make(**pools: dict[str, Any]) -> Site:
        fleet = parse_fleet({"pools": pools or {"box": {"size": 2, "reuse": "reset"}}}, "test", folder)
        return Site(fleet, StateFolder(folder / "state"))

    return make


async def test_each_pool_has_its_own_sandboxes(make_site: MakeSite) -> None:
    async with make_site(red={"size": 2}, blue={"size": 1, "variables": {"COLOUR": "blue"}}) as site:
        await site.wait_ready()
        assert {row["id"]: row["pool"] for row in site.snapshot()} == {"red-0": "red", "red-1": "red", "blue-0": "blue"}
        sandbox = await site.lease("blue", "me")
        assert (await sandbox.exec("echo $COLOUR")).stdout == b"blue\n"
        assert site.held(sandbox.token) is sandbox
        with pytest.raises(NotFound, match="red, blue"):
            await site.lease("green", "me")


async def test_tokens_are_never_the_same_in_two_pools(make_site: MakeSite) -> None:
    async with make_site(red={"size": 1}, blue={"size": 1}) as site:
        tokens = [(await site.lease(pool, "me")).token for pool in ("red", "blue")]
        assert tokens[1] > tokens[0]


async def test_a_named_sandbox_is_leased_only_while_it_is_ready(make_site: MakeSite) -> None:
    async with make_site() as site:
        await site.wait_ready()
        sandbox = await site.lease_one("box-1", "me")
        assert sandbox.id == "box-1"
        with pytest.raises(LeaseTimeout, match="LEASED, held by me"):
            await site.lease_one("box-1", "you")
        await sandbox.release()
        assert (await site.lease_one("box-1", "you")).id == "box-1"


async def test_ids_may_be_shortened_as_long_as_they_are_unique(make_site: MakeSite) -> None:
    async with make_site(red={"size": 2}, blue={"size": 1}) as site:
        assert (await site.describe("b"))["id"] == "blue-0"
        with pytest.raises(AmbiguousId, match="red-0, red-1"):
            await site.describe("red")
        with pytest.raises(NotFound, match="red-0, red-1, blue-0"):
            await site.describe("green")
        with pytest.raises(NotFound):
            await site.describe("")


async def test_a_description_hides_the_values_of_variables(make_site: MakeSite) -> None:
    async with make_site(box={"variables": {"API_KEY": "s3cr3t"}}) as site:
        await site.wait_ready()
        described = await site.describe("box-0")
        assert described["spec"]["variables"] == {"API_KEY": HIDDEN}
        assert "s3cr3t" not in str(described)
        assert "started" in [event["kind"] for event in described["events"]]


async def test_a_second_manager_is_refused_with_the_pid_of_the_first(make_site: MakeSite) -> None:
    async with make_site() as site:
        assert site.state.manager() == os.getpid()
        with pytest.raises(StateLocked, match=f"pid {os.getpid()}"):
            await make_site().__aenter__()
    assert site.state.manager() is None
    async with make_site():
        pass


async def test_nothing_but_the_record_is_left(make_site: MakeSite) -> None:
    before = set(descendants(os.getpid()))
    async with make_site() as site:
        await site.wait_ready()
        sandbox = await site.lease("box", "me")
    assert set(descendants(os.getpid())) <= before
    assert list(site.state.run.iterdir()) == []
    async with make_site() as again:
        with pytest.raises(LeaseLost, match="is over"):
            again.held(sandbox.token)
        assert {"started", "leased"} <= {event.kind for event in again.events()}


async def test_files_of_a_site_are_for_its_user_alone(make_site: MakeSite) -> None:
    async with make_site() as site:
        for path in (site.state.path, site.state.store, site.state.fleet, site.state.run):
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


async def test_a_pool_that_cannot_start_says_why(make_site: MakeSite) -> None:
    async with make_site(box={"command": ["sh", "-c", "exit 9"], "restart": {"limit": 2, "backoff_s": 0}}) as site:
        with pytest.raises(FleetExhausted, match="code 9"):
            await site.wait_ready()


async def test_a_scaled_pool_is_up_when_it_has_its_new_size(make_site: MakeSite) -> None:
    async with make_site() as site:
        await site.wait_ready()
        site.scale("box", 3)
        await site.wait_ready()
        assert [row["id"] for row in site.snapshot()] == ["box-0", "box-1", "box-2"]
        assert site.pools()[0]["size"] == 3


async def test_listeners_hear_of_events_as_they_happen(make_site: MakeSite) -> None:
    async with make_site() as site:
        await site.wait_ready()
        last = site.events()[-1].seq
        hearing = asyncio.create_task(site.changed())
        await asyncio.sleep(0)
        await site.lease("box", "me")
        await hearing
        assert next(event.kind for event in site.events(after=last)) == "leased"


async def test_leases_of_a_pool_that_is_gone_are_ended(make_site: MakeSite) -> None:
    async with make_site(old={"size": 1}) as site:
        lease = await site.lease("old", "me")
    record = sqlite3.connect(site.state.store)
    record.execute("UPDATE leases SET ended = NULL, outcome = NULL")  # as a killed manager leaves it
    record.commit()
    record.close()
    async with make_site(new={"size": 1}) as site:
        with pytest.raises(LeaseLost, match="its pool is gone"):
            site.held(lease.token)


async def test_a_state_folder_that_is_too_deep_for_sockets_is_refused(folder: Path) -> None:
    with pytest.raises(SocketPathTooLong, match="--state"):
        StateFolder(folder / ("x" * 90)).prepare()


async def test_a_state_folder_that_cannot_be_made_is_refused(folder: Path) -> None:
    (folder / "file").write_text("")
    with pytest.raises(StoreFailed, match="cannot be used: Not a directory"):
        StateFolder(folder / "file" / "state").prepare()
