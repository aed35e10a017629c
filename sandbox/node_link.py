"""The fleet's end of one node: its actor, its lease, the connection that ends with it, and what runs there.

A node is lost when its process is known to have ended, when Ray says that it did, or when its lease ran out. Whether
its sandboxes are gone is another question: only the end of the tether or of the lease answers it (`severed`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from rocknroll.sandbox.channel import Route
from rocknroll.sandbox.errors import (
    NodeLost,
    RequestTimeout,
    RuntimeUnavailable,
    SandboxError,
    SandboxLost,
    StartTimeout,
)
from rocknroll.sandbox.node_lease import NodeHealth, NodePolicy, Standing
from rocknroll.sandbox.placement import NodeState
from rocknroll.sandbox.spec import SandboxSpec

OPEN_TIMEOUT_S = 120.0
"""An actor's process starts and imports this package."""
ANSWER_TIMEOUT_S = 10.0
ACCOUNT_TIMEOUT_S = 1.0
"""A node whose connection ended and that says nothing for so long is not asked further."""
START_SLACK_S = 5.0
"""Beyond the specification's own timeout, which the node keeps."""
IMAGES_S = 30.0
"""A list of images is good for so long."""
_log = logging.getLogger(__name__)


class NodeLink:
    """Make one with `open`."""

    def __init__(self, name: str, room: int, actor: Any, policy: NodePolicy) -> None:
        self.name, self.room, self.actor = name, room, actor
        self.instances: set[NodeInstance] = set()
        self.draining = False
        self.load = 0.0
        self.cores, self.pid = 1, 0
        self.versions: Mapping[str, str] = {}
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why the node is given up."""
        self.severed = asyncio.Event()
        """None of its sandboxes runs any more."""
        self.health: NodeHealth
        self.address: tuple[str, int]
        self._policy = policy
        self._tether: asyncio.WriteTransport | None = None
        self._closing = False
        self._images: frozenset[str] = frozenset()
        self._images_s = -IMAGES_S

    async def open(self) -> None:
        """Wait for the actor, and tie this process to it.

        Raises:
            RuntimeUnavailable: the node cannot run it; the text says why.
        """
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                facts = await self.actor.open.remote()
        except TimeoutError:
            raise RuntimeUnavailable(f"node {self.name} did not start its actor within {OPEN_TIMEOUT_S:g} s") from None
        except RayError as failed:
            raise RuntimeUnavailable(f"node {self.name} cannot start its actor: {failed}") from None
        self.health = NodeHealth(self._policy, facts["clock_s"], time.monotonic())
        self.versions, self.pid, self.cores, self.load = (facts[key] for key in ("versions", "pid", "cores", "load"))
        self.address = (facts["host"], facts["port"])
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                self._tether, _ = await loop.create_connection(lambda: _Tether(self._cut), *self.address)
        except (OSError, TimeoutError) as refused:
            raise RuntimeUnavailable(
                f"node {self.name} cannot be reached at {self.address[0]}:{self.address[1]} ({refused}); sandboxes are"
                " spoken to over TCP on ports of the kernel's choice, which a firewall between the nodes must let pass"
            ) from None
        self._tether.write(facts["tether"].encode())

    @property
    def state(self) -> NodeState:
        """For `placement.place`."""
        closed = ""
        if self.lost.done():
            closed = f"is lost: {self.lost.result()}"
        elif self.health.standing is not Standing.ACTIVE:
            closed = f"is {self.health.standing.value}: it missed {self.health.misses} pings"
        elif self.draining:
            closed = "is draining"
        return NodeState(self.name, self.room, len(self.instances), self.load, self._images, closed)

    async def ask(self, method: str, *arguments: Any, timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        """Call the actor.

        Raises:
            NodeLost: the node is given up. RequestTimeout: no answer; whether it took effect is unknown.
            SandboxError: the error that it answered with.
        """
        if self.lost.done():
            raise self.loss()
        try:
            async with asyncio.timeout(timeout_s):
                answer = await getattr(self.actor, method).remote(*arguments)
        except TimeoutError:
            raise RequestTimeout(f"node {self.name} did not answer {method} within {timeout_s:g} s") from None
        except ActorUnavailableError as away:
            raise RequestTimeout(f"node {self.name} cannot be reached: {away}") from None
        except RayActorError as died:
            self.lose(f"Ray says that its process ended: {died}")
            raise self.loss() from None
        except RayError as failed:
            raise RequestTimeout(f"node {self.name} failed at {method}: {failed}") from None
        if isinstance(answer, dict) and isinstance(answer.get("error"), SandboxError):
            raise answer["error"]
        return answer

    async def look_at_images(self) -> None:
        """Know which images are there, by a list that is not old."""
        if time.monotonic() < self._images_s + IMAGES_S or self.lost.done():
            return
        self._images_s = time.monotonic()
        try:
            self._images = await self.ask("images")
        except SandboxError:
            self._images_s = -IMAGES_S  # whoever needs an image asks again

    async def watch(self) -> None:
        """Ping until the node is lost, then wait until it is certain that nothing runs there."""
        while not self.lost.done():
            await self._ping()
            await asyncio.wait([self.lost], timeout=self._policy.interval_s)
        try:
            async with asyncio.timeout(self.health.fenced_s - time.monotonic()):
                await self.severed.wait()
        except TimeoutError:
            self._sever()

    async def _ping(self) -> None:
        deadline_s = self.health.renewal(time.monotonic())
        try:
            answer = await self.ask("renew", deadline_s, timeout_s=self._policy.timeout_s)
        except SandboxError:
            self.health.missed()
        else:
            self.health.answered(answer["clock_s"], time.monotonic())
            self.load = answer["load"]
            if not answer["in_force"]:
                self.lose(f"it had not heard of this fleet for {self._policy.ttl_s:g} s, and ended its sandboxes")
        self.health.tick(time.monotonic())
        if self.health.standing is Standing.LOST:
            self.lose(f"it was not heard of for {self._policy.ttl_s:g} s")

    def lose(self, reason: str) -> None:
        """Give the node up: whoever holds something there learns it now."""
        if self.lost.done():
            return
        self.health.gone()
        self.lost.set_result(reason)
        for instance in list(self.instances):
            instance.gone(self.loss())

    def loss(self) -> NodeLost:
        """What happened to everything there."""
        return NodeLost(f"node {self.name} is lost: {self.lost.result() if self.lost.done() else 'it was closed'}")

    async def close(self) -> None:
        """End the actor and what it runs, as far as it can be reached."""
        self._closing = True
        if not self.lost.done():
            try:
                await self.ask("close")
            except SandboxError as silent:
                _log.warning("%s; what it runs ends with this process, or when its lease does", silent)
            self.lose("the fleet closed")
        self._sever()
        if self._tether is not None:
            self._tether.abort()

    def _cut(self, end: Exception | None) -> None:
        if not self._closing and (end is None or isinstance(end, ConnectionResetError)):
            self.lose("its process ended")
            self._sever()

    def _sever(self) -> None:
        self.severed.set()
        for instance in list(self.instances):
            instance.over.set()
        self.instances.clear()


class _Tether(asyncio.Protocol):
    """Says nothing and hears nothing; its end is the news."""

    def __init__(self, cut: Callable[[Exception | None], None]) -> None:
        self._cut = cut

    def connection_lost(self, exc: Exception | None) -> None:
        self._cut(exc)


class NodeInstance:
    """One sandbox on a node, see `base.Instance`; also the way to its agent."""

    def __init__(self, link: NodeLink, instance_id: str) -> None:
        self.id, self.node, self.link = instance_id, link.name, link
        self.pid, self.secret = 0, ""
        self.python: tuple[str, ...] = ()
        self.over = asyncio.Event()
        """Nothing is left of it."""
        self._key = ""
        self._burial: asyncio.Task[None] | None = None
        self._gone: asyncio.Future[SandboxLost] = asyncio.get_running_loop().create_future()
        link.instances.add(self)

    @property
    def way(self) -> Route:
        return self

    @property
    def record(self) -> Mapping[str, Any]:
        return {"runtime": "ray", "node": self.node, "instance": self.id}

    async def start(self, spec: SandboxSpec, floor: int) -> None:
        """See `base.Runtime.start`. Whatever goes wrong, nothing is left behind, or is being removed."""
        try:
            facts = await self.link.ask(
                "start", spec.model_dump_json(), self.id, floor, timeout_s=spec.start_timeout_s + START_SLACK_S
            )
        except (NodeLost, RequestTimeout, asyncio.CancelledError) as unknown:
            self._burial = asyncio.create_task(self.kill())
            if isinstance(unknown, RequestTimeout):
                raise StartTimeout(str(unknown)) from None
            raise
        except SandboxError:
            self._buried()
            raise
        self.pid, self.secret, self.python = facts["pid"], facts["secret"], tuple(facts["python"])
        self._key = facts["key"]

    def on_exit(self, callback: Callable[[SandboxLost], None]) -> None:
        self._gone.add_done_callback(lambda gone: callback(gone.result()))

    def gone(self, why: SandboxLost) -> None:
        """It is lost, and not by its own doing."""
        if not self._gone.done():
            self._gone.set_result(why)

    async def kill(self) -> None:
        """See `base.Instance.kill`: on a node that cannot be reached, that is when the node has ended it itself."""
        while not self.over.is_set():
            try:
                await self.link.ask("kill", self.id)
                self._buried()
            except NodeLost:
                await self.link.severed.wait()
                self._buried()
            except SandboxError:
                await asyncio.wait([self.link.lost], timeout=ACCOUNT_TIMEOUT_S)

    async def autopsy(self) -> str:
        try:
            return str(await self.link.ask("autopsy", self.id))
        except SandboxError as error:
            return str(error)

    async def output_tail(self) -> str:
        try:
            return str(await self.link.ask("output_tail", self.id))
        except SandboxError as error:
            return f"({error})"

    async def dial(self, factory: Callable[[], asyncio.Protocol]) -> asyncio.WriteTransport:
        """See `channel.Route`."""
        transport, _ = await asyncio.get_running_loop().create_connection(factory, *self.link.address)
        transport.write(self._key.encode())
        return transport

    async def account(self, end: OSError | None) -> SandboxLost:
        """See `channel.Route`: the sandbox's end, or the node's."""
        asking = asyncio.create_task(self.link.ask("ended", self.id, timeout_s=ACCOUNT_TIMEOUT_S))
        asking.add_done_callback(lambda done: done.cancelled() or done.exception())  # the node's end may come first
        either: list[asyncio.Future[Any]] = [asking, self.link.lost]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self.link.lost.done():
                return self.link.loss()
            return SandboxLost(asking.result() or f"the agent's connection closed{f': {end}' if end else ''}")
        except SandboxError as silent:
            return self.link.loss() if self.link.lost.done() else SandboxLost(f"its connection closed, and {silent}")
        finally:
            asking.cancel()

    def _buried(self) -> None:
        self.over.set()
        self.link.instances.discard(self)

    def __str__(self) -> str:
        return f"{self.id} on {self.node}"
