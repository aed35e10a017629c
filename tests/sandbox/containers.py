"""Containers for tests: the base image, small limits, an open instance. Without Docker tests skip, or fail if told."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NoReturn

import pytest

from rocknroll.sandbox.channel import Channel
from rocknroll.sandbox.runtimes.docker import DockerRuntime
from rocknroll.sandbox.runtimes.docker_instance import DockerInstance
from rocknroll.sandbox.spec import Resources, SandboxSpec

BASE = "rocknroll-base:local"
START_TIMEOUT_S = 120.0
SMALL = Resources(memory_bytes=192 << 20, processes=100, scratch_bytes=8 << 20, work_bytes=16 << 20)


def missing(what: str) -> NoReturn:
    """Skip; where Docker is required, fail."""
    if os.environ.get("ROCKNROLL_REQUIRE_DOCKER"):
        pytest.fail(f"ROCKNROLL_REQUIRE_DOCKER is set, but {what}")
    pytest.skip(what)


@dataclass
class Opened:
    """A started instance and a connection to its agent."""

    instance: DockerInstance
    channel: Channel

    async def sh(self, command: str, timeout_s: float = 60.0, stdin: bytes = b"") -> tuple[int, str]:
        """(exit code, output and error output)"""
        fields = {"token": 1, "argv": ["/bin/sh", "-c", command], "timeout_s": timeout_s}
        header, body = await self.channel.request("exec", fields, stdin)
        return int(header["exit_code"]), body.decode(errors="replace").strip()


@asynccontextmanager
async def opened(runtime: DockerRuntime, spec: SandboxSpec, instance_id: str = "box-0.1") -> AsyncIterator[Opened]:
    """Start one and say hello; it is killed at the end."""
    instance = await runtime.start(spec, instance_id, 0)
    try:
        channel = await Channel.connect(instance.socket_path, instance.secret, START_TIMEOUT_S)
        yield Opened(instance, channel)
        channel.close()
    finally:
        await instance.kill()
