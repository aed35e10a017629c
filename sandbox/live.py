"""A started sandbox, and the two ways to one: bring it up, or take over what an earlier manager left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rocknroll.sandbox.channel import Channel, Header
from rocknroll.sandbox.errors import EnvError, SandboxError, SandboxLost, StartFailed
from rocknroll.sandbox.preload import preload
from rocknroll.sandbox.runtimes.base import Instance, Runtime
from rocknroll.sandbox.spec import SandboxSpec
from rocknroll.sandbox.store import SandboxRow


@dataclass(frozen=True)
class Ears:
    """Whom to tell what a sandbox says unasked."""

    event: Callable[[Header], None]
    lost: Callable[[SandboxLost], None]


@dataclass
class Live:
    """What exists of a started sandbox."""

    generation: int
    instance: Instance
    channel: Channel

    async def end(self) -> None:
        """Close its channel, then kill it."""
        self.channel.close()
        await self.instance.kill()


def instance_id(sandbox_id: str, generation: int) -> str:
    """What the runtime knows an instance by."""
    return f"{sandbox_id}.{generation}"


async def bring_up(
    runtime: Runtime, spec: SandboxSpec, sandbox_id: str, generation: int, floor: int, ears: Ears
) -> Live:
    """Instance, channel, environment, command: all of what READY means.

    Raises:
        SandboxError: one of them failed, with the instance's own account of it; nothing is left of the others.
    """
    instance = await runtime.start(spec, instance_id(sandbox_id, generation), floor)
    channel: Channel | None = None
    try:
        channel = await _connect_while_alive(instance, spec.start_timeout_s, ears)
        await preload(channel, instance.python, spec, floor)
    except BaseException as error:
        if channel is not None:
            channel.close()
        if isinstance(error, SandboxError) and not isinstance(error, EnvError):
            error.args = (f"{error}; {await instance.autopsy()}",)
        await asyncio.shield(instance.kill())
        raise
    return Live(generation, instance, channel)


async def take_over(runtime: Runtime, spec: SandboxSpec, row: SandboxRow, ears: Ears) -> Live | None:
    """The instance that the row tells of, if it still runs by the same specification and answers.

    Raises:
        RuntimeUnavailable: the runtime cannot tell.
    """
    if row.record is None or row.spec != spec.fingerprint:
        return None
    instance = await runtime.adopt(spec, row.record)
    if instance is None:
        return None
    try:
        return Live(row.generation, instance, await _connect(instance, spec.health.timeout_s, ears))
    except SandboxError:
        await instance.kill()
        return None


async def _connect_while_alive(instance: Instance, timeout_s: float, ears: Ears) -> Channel:
    """An instance that ends before its agent answers is a failed start at once, not after the whole of the timeout."""
    ended: asyncio.Future[SandboxLost] = asyncio.get_running_loop().create_future()
    instance.on_exit(lambda why: None if ended.done() else ended.set_result(why))
    connecting = asyncio.ensure_future(_connect(instance, timeout_s, ears))
    either: list[asyncio.Future[Any]] = [connecting, ended]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not connecting.done():
            raise StartFailed(f"{ended.result()} before its agent answered")
        return connecting.result()
    finally:
        ended.cancel()
        connecting.cancel()


async def _connect(instance: Instance, timeout_s: float, ears: Ears) -> Channel:
    return await Channel.connect(instance.way, instance.secret, timeout_s, on_event=ears.event, on_lost=ears.lost)
