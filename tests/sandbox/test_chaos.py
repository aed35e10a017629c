"""Three minutes of faults on 20 sandboxes, drawn from a seed: nothing is lost silently, nothing is left.

Sandboxes are killed and frozen, run out of memory and disk; the manager is killed with -9. Holders lease from the
service all the while, from another process than the manager's. `docker/test_docker_chaos.py` does it to containers.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from endurance import SPEC, Manager, check, endure

pytestmark = [pytest.mark.slow, pytest.mark.asyncio, pytest.mark.timeout(900)]


async def test_process_sandboxes_endure(folder: Path) -> None:
    manager = Manager(folder, {**SPEC, "runtime": "process"}, {})
    await manager.up("--wait")
    account, faults = await endure(manager, {})
    check(account, faults, manager, {"kill", "freeze", "crash"})
