"""A runtime whose sandboxes do not show what earns rewards: expected outputs, tests, solutions."""

from __future__ import annotations

import secrets
from typing import Literal

from rocknroll.sandbox.errors import RuntimeUnavailable
from rocknroll.sandbox.runtimes.base import Runtime

RuntimeName = Literal["docker", "process"]


async def hiding_runtime(kind: RuntimeName, purpose: str, danger: str) -> Runtime:
    """To be closed by the caller.

    Args:
        purpose: begins the mark by which containers are found again.
        danger: what could happen without isolation, for the error.

    Raises:
        RuntimeUnavailable: this machine has no daemon, or no isolation that hides files.
    """
    if kind == "docker":
        from rocknroll.sandbox.runtimes.docker import DockerRuntime

        docker = DockerRuntime(f"{purpose}-{secrets.token_hex(4)}")
        await docker.isolation()
        return docker
    from rocknroll.sandbox.runtimes.process import ProcessRuntime

    processes = ProcessRuntime()
    isolation = await processes.isolation()
    if "files" not in isolation.separated:
        await processes.close()
        raise RuntimeUnavailable(
            f"process sandboxes cannot hide files here, so {danger}: "
            f"{isolation.missing}; {isolation.remedy or 'use Docker (runtime: docker)'}"
        )
    return processes
