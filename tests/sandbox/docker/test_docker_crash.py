"""Containers outlive a manager that is killed with -9, and its successor goes on with them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import docker
import pytest
from containers import BASE
from crashing import crash, make_fleet

from rocknroll.sandbox.errors import LeaseLost
from rocknroll.sandbox.store import Store

pytestmark = pytest.mark.asyncio


async def test_leases_on_containers_go_on_under_their_tokens(
    client: docker.APIClient, host_folder: Path, left: Callable[[str], list[str]]
) -> None:
    tokens = crash("docker", host_folder, 10, BASE)
    fleet = make_fleet("docker", host_folder, 10, BASE)
    async with fleet:
        dead_owner = tokens.popitem()[1]
        for sandbox_id, token in tokens.items():
            sandbox = fleet.held(token)
            assert sandbox.id == sandbox_id
            assert (await sandbox.exec("cat note")).stdout == f"{token}\n".encode()
        with pytest.raises(LeaseLost, match="its owner died"):
            fleet.held(dead_owner)
    with contextlib.closing(Store(host_folder / "fleet.db")) as store:
        assert left(store.fleet_id) == []
