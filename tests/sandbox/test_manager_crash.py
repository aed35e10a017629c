"""A manager that is killed with -9 and started again: same sandboxes, same leases, nothing forgotten or leaked."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from crashing import crash, make_fleet

from rocknroll.sandbox.errors import LeaseLost, StaleToken
from rocknroll.sandbox.lifecycle import State
from rocknroll.sandbox.store import Store

pytestmark = pytest.mark.asyncio
Eventually = Callable[[Callable[[], bool]], Awaitable[None]]


async def test_leases_go_on_under_their_tokens_and_commands_find_their_files(folder: Path) -> None:
    tokens = crash("process", folder, 10)
    fleet = make_fleet("process", folder, 10)
    async with fleet:
        dead_owner = tokens.popitem()[1]
        assert len(tokens) == 9
        for sandbox_id, token in tokens.items():
            sandbox = fleet.held(token)
            assert sandbox.id == sandbox_id
            assert (await sandbox.exec("cat note")).stdout == f"{token}\n".encode()
        states = {row["id"]: row["state"] for row in fleet.snapshot()}
        assert {states[sandbox_id] for sandbox_id in tokens} == {State.LEASED}
        with pytest.raises(LeaseLost, match="its owner died"):
            fleet.held(dead_owner)
    assert list(folder.glob("rock-*")) == []


async def test_a_holder_renews_and_releases_a_lease_that_it_took_from_the_dead_manager(folder: Path) -> None:
    (sandbox_id, token), *_ = crash("process", folder, 2).items()
    async with make_fleet("process", folder, 2) as fleet:
        sandbox = fleet.held(token)
        sandbox.heartbeat(ttl_s=1000.0)
        await sandbox.release()
        with pytest.raises(LeaseLost, match="released"):
            fleet.held(token)
        again = await fleet.lease("next", timeout_s=30.0)
        assert again.token > token
        if again.id == sandbox_id:
            assert (await again.exec("cat note")).stdout == f"{token}\n".encode()  # reuse is reset
    assert Store(folder / "fleet.db").open_leases() == []


async def test_what_died_with_the_manager_is_reported_lost_and_replaced(folder: Path, eventually: Eventually) -> None:
    tokens = crash("process", folder, 3)
    (victim, token), *_ = tokens.items()
    (row,) = [row for row in Store(folder / "fleet.db").sandboxes("box") if row.id == victim]
    assert row.record is not None
    os.kill(row.record["pid"], signal.SIGKILL)
    async with make_fleet("process", folder, 3) as fleet:
        with pytest.raises(LeaseLost, match="did not outlive the manager"):
            fleet.held(token)
        await eventually(lambda: {r["id"]: r["state"] for r in fleet.snapshot()}[victim] == State.READY)
        events = [(event.sandbox_id, event.kind) for event in fleet.events()]
        assert (victim, "lease_lost") in events
        generations = {row.id: row.generation for row in Store(folder / "fleet.db").sandboxes("box")}
        assert generations[victim] > row.generation


async def test_nothing_that_an_earlier_manager_started_accepts_an_older_token(folder: Path) -> None:
    ((_, token),) = crash("process", folder, 1).items()
    async with make_fleet("process", folder, 1) as fleet:
        with pytest.raises(LeaseLost):
            fleet.held(token)  # its owner died with the manager
        fresh = await fleet.lease("next", timeout_s=30.0)
        with pytest.raises(StaleToken):
            await fresh._channel.request("exec", {"token": token, "argv": ["true"], "timeout_s": 5.0})


async def test_a_changed_specification_is_not_run_by_what_is_there(folder: Path) -> None:
    tokens = crash("process", folder, 2)
    fleet = make_fleet("process", folder, 2)
    other = fleet.spec.model_copy(update={"variables": {"NEW": "yes"}})
    changed = type(fleet)(other, 2, fleet.runtime, fleet._store)
    async with changed:
        for token in tokens.values():
            with pytest.raises(LeaseLost):
                changed.held(token)
        async with await changed.lease("me", timeout_s=30.0) as sandbox:
            assert (await sandbox.exec("echo $NEW")).stdout == b"yes\n"


async def test_a_smaller_fleet_ends_the_sandboxes_that_it_has_no_place_for(folder: Path) -> None:
    tokens = crash("process", folder, 3)
    async with make_fleet("process", folder, 1) as fleet:
        assert [row["id"] for row in fleet.snapshot()] == ["box-0"]
        for sandbox_id, token in tokens.items():
            if sandbox_id != "box-0":
                with pytest.raises(LeaseLost):
                    fleet.held(token)
        assert [row.id for row in Store(folder / "fleet.db").sandboxes("box")] == ["box-0"]
    assert list(folder.glob("rock-*")) == []
