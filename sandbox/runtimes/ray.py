"""Sandboxes on the nodes of a Ray cluster: one actor per node starts them there, by that machine's own runtimes.

Only starts, ends and pings are calls of Ray; a sandbox itself is spoken to over a TCP connection to its node, which
goes on to its agent. A sandbox's successor starts only when nothing is left of it, wherever it was: no two instances
of one sandbox ever run at a time, not even across a network that has come apart.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rocknroll.sandbox import cluster
from rocknroll.sandbox.cluster import ClusterChoice
from rocknroll.sandbox.errors import (
    ClusterUnavailable,
    ImageNotFound,
    NodeLost,
    NotFound,
    RuntimeUnavailable,
    SandboxError,
)
from rocknroll.sandbox.node_actor import NodeActor, versions
from rocknroll.sandbox.node_lease import NodePolicy, Standing
from rocknroll.sandbox.node_link import NodeInstance, NodeLink
from rocknroll.sandbox.placement import NodeState, lacks_image, place, refusal
from rocknroll.sandbox.runtimes.base import Isolation
from rocknroll.sandbox.spec import SandboxSpec

RESOURCE = "sandboxes"
"""Ray resource that says how many a node may have: `ray start --resources='{"sandboxes": 64}'`. Where any node has
it, those without get none."""
SANDBOXES_PER_CPU = 16
"""How many a node may have for each CPU that Ray knows of, where no node says."""
REFRESH_S = 5.0
"""Between two looks at which nodes there are."""
SUSPICION_PATIENCE_S = 10.0
"""A start waits so long for a suspect node to answer, where no other can take it: often it is this process that was
slow."""
SUSPICION_PAUSE_S = 0.1
BURIAL_PATIENCE_S = 5.0
"""A start waits so long for the end of its predecessor, before it gives way to others."""
_log = logging.getLogger(__name__)


class RayRuntime:
    """See `base.Runtime`. Sandboxes end with this process: there is nothing to adopt and nothing to sweep."""

    name = "ray"
    node = ""

    def __init__(self, choice: ClusterChoice, policy: NodePolicy | None = None) -> None:
        self._choice, self._policy = choice, policy or NodePolicy()
        self._links: dict[str, NodeLink] = {}
        """By Ray's id of the node, until it is certain that nothing runs there any more."""
        self._last: dict[str, NodeInstance] = {}
        """The newest instance of each sandbox."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused: dict[str, str] = {}
        self._opening: asyncio.Task[None] | None = None
        self._refreshing = asyncio.Lock()
        self._joined = False

    async def open(self, sandboxes: int) -> Self:
        """Join the cluster and begin on all of its nodes; see that it has room for so many sandboxes.

        Raises:
            ClusterUnavailable: it cannot be joined, a node does not fit this process, or it has too little room.
        """
        await self._opened()
        room = sum(link.room for link in self._links.values())
        if room < sandboxes:
            raise ClusterUnavailable(
                f"{sandboxes} sandboxes are wanted, and the Ray cluster at {self._choice.address} has room for {room}: "
                f"{self._rooms()}. {sandboxes - room} are missing: add nodes, give nodes more"
                f" (`ray start --resources='{{\"{RESOURCE}\": N}}'`; otherwise {SANDBOXES_PER_CPU} for each CPU), or"
                " ask for fewer"
            )
        return self

    @property
    def cores(self) -> int:
        """Of all nodes that take sandboxes."""
        return sum(link.cores for link in self._links.values() if not link.lost.done())

    def nodes(self) -> list[dict[str, Any]]:
        """Every node that has or may have sandboxes; `pid` is of the actor there."""
        return [
            {
                "name": state.name,
                "pid": link.pid,
                "standing": link.health.standing.value,
                "draining": link.draining,
                "room": state.room,
                "sandboxes": state.sandboxes,
                "load": state.load,
            }
            for link in self._links.values()
            for state in (link.state,)
        ]

    def drain(self, node: str, draining: bool = True) -> None:
        """Place nothing new on a node; what it has goes on.

        Raises:
            NotFound: there is no such node.
        """
        for link in self._links.values():
            if link.name == node:
                link.draining = draining
                return
        raise NotFound(f"there is no node {node!r}; there are: {', '.join(row['name'] for row in self.nodes())}")

    async def isolation(self) -> Isolation:
        """Of the node that separates least."""
        await self._opened()
        found = await asyncio.gather(*(link.ask("isolation") for link in self._links.values()))
        weakest: Isolation = min((answer["isolation"] for answer in found), key=lambda each: len(each.separated))
        return weakest

    async def start(self, spec: SandboxSpec, instance_id: str, floor: int) -> NodeInstance:
        """See `base.Runtime.start`.

        Raises:
            ImageNotFound: no node has the image.
        """
        await self._opened()
        await self._predecessor_is_gone(instance_id)
        failed: dict[str, SandboxError] = {}
        while True:
            instance = NodeInstance(await self._choose(spec, failed), instance_id)
            self._last[_slot(instance_id)] = instance
            try:
                await instance.start(spec, floor)
                return instance
            except NodeLost as error:
                failed[instance.node] = error
                await self._predecessor_is_gone(instance_id)
            except RuntimeUnavailable as error:
                failed[instance.node] = error

    async def adopt(self, spec: SandboxSpec, record: Mapping[str, Any]) -> NodeInstance | None:
        return None

    async def sweep(self, keep: Collection[str]) -> list[str]:
        return []

    async def strays(self, keep: Collection[str]) -> list[str]:
        """None: each node ends what it is not told to keep, see `node_lease.py`."""
        return []

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        links = list(self._links.values())
        self._links.clear()
        await asyncio.gather(*(link.close() for link in links))
        for link in links:
            await asyncio.to_thread(ray.kill, link.actor)
        if self._joined:
            self._joined = False
            await asyncio.to_thread(cluster.leave)

    async def _opened(self) -> None:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        self._joined = await asyncio.to_thread(cluster.join, self._choice)
        await self._refresh()
        if self._refused:
            raise ClusterUnavailable("; ".join(self._refused.values()))
        if not self._links:
            raise ClusterUnavailable(
                f"the Ray cluster at {self._choice.address} has no node for sandboxes: none has CPUs or the resource"
                f" `{RESOURCE}`; add one with `ray start --address={self._choice.address}`"
            )
        self._spawn(self._keep())

    async def _keep(self) -> None:
        """Nodes come and go."""
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                await self._refresh()
            except RuntimeUnavailable as away:
                _log.warning("which nodes there are cannot be asked: %s", away)

    async def _refresh(self) -> None:
        """Begin on nodes that are new. What is wrong with one is kept, and said once."""
        async with self._refreshing:
            try:
                found = await asyncio.to_thread(ray.nodes)
            except (ray.exceptions.RayError, RuntimeError) as error:
                raise RuntimeUnavailable(f"the Ray cluster does not answer: {error}") from None
            new = [row for row in rooms(found) if row[0] not in self._links and row[0] not in self._refused]
            await asyncio.gather(*(self._begin(*row) for row in new))

    async def _begin(self, node_id: str, name: str, host: str, room: int) -> None:
        actor = await asyncio.to_thread(self._make_actor, node_id, host)
        link = NodeLink(name, room, actor, self._policy)
        try:
            await link.open()
            check_versions(name, link.versions, versions())
        except RuntimeUnavailable as error:
            self._refused[node_id] = str(error)
            _log.warning("%s", error)
            await asyncio.to_thread(ray.kill, actor)
            return
        self._links[node_id] = link
        self._spawn(self._watch(node_id, link))

    def _make_actor(self, node_id: str, host: str) -> Any:
        options = {
            "num_cpus": 0,
            "max_restarts": 0,
            "max_concurrency": 1_000,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False),
        }
        return ray.remote(NodeActor).options(**options).remote(host, self._policy.ttl_s)

    async def _watch(self, node_id: str, link: NodeLink) -> None:
        await link.watch()
        del self._links[node_id]
        # A process that lives on after its lease has nothing to do any more; the machine may get another actor.
        await asyncio.to_thread(ray.kill, link.actor)

    async def _predecessor_is_gone(self, instance_id: str) -> None:
        previous = self._last.get(_slot(instance_id))
        if previous is None or previous.over.is_set():
            return
        try:
            async with asyncio.timeout(BURIAL_PATIENCE_S):
                await previous.over.wait()
        except TimeoutError:
            raise RuntimeUnavailable(
                f"{previous} cannot be reached and may still run; its node ends it when it has not heard of this fleet"
                f" for {self._policy.ttl_s:g} s"
            ) from None

    async def _choose(self, spec: SandboxSpec, failed: Mapping[str, SandboxError]) -> NodeLink:
        """The node for one more sandbox.

        Raises:
            RuntimeUnavailable: none can take it now; the text says why of each. ImageNotFound: none has the image.
        """
        deadline_s = time.monotonic() + SUSPICION_PATIENCE_S
        while True:
            if all(link.state.closed for link in self._links.values()):
                await self._refresh()
            if spec.image:
                await asyncio.gather(*(link.look_at_images() for link in self._links.values()))
            by_name = {link.name: link for link in self._links.values()}
            states = [link.state for link in by_name.values()]
            chosen = place(states, spec.image, failed)
            if chosen is not None:
                return by_name[chosen.name]
            suspects = any(link.health.standing is Standing.SUSPECT for link in by_name.values())
            if not suspects or time.monotonic() > deadline_s:
                raise self._refusal(spec.image, states, failed)
            await asyncio.sleep(SUSPICION_PAUSE_S)

    def _refusal(self, image: str, states: Sequence[NodeState], failed: Mapping[str, SandboxError]) -> SandboxError:
        takers = [state for state in states if not state.closed]
        if takers and not failed and lacks_image(takers, image):
            return ImageNotFound(
                f"no node has the image {image}: {', '.join(state.name for state in takers)}; make it there with"
                " `rock image build`, or fetch it with `docker pull`"
            )
        told = [f"{name}: {error}" for name, error in failed.items()]
        reasons = [f"{state.name} {refusal(state, image)}" for state in states if state.name not in failed]
        return RuntimeUnavailable(f"no node can take a sandbox now: {'; '.join([*told, *reasons]) or 'there is none'}")

    def _rooms(self) -> str:
        return ", ".join(f"{link.name} for {link.room}" for link in self._links.values()) or "it has no node for any"

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def rooms(nodes: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str, int]]:
    """Of Ray's list those nodes that take sandboxes: id, name, address, and how many."""
    alive = [node for node in nodes if node["Alive"]]
    declared = any(RESOURCE in node["Resources"] for node in alive)
    found = []
    for node in alive:
        resources = node["Resources"]
        room = resources.get(RESOURCE, 0.0) if declared else SANDBOXES_PER_CPU * resources.get("CPU", 0.0)
        if room >= 1:
            name = f"{node['NodeManagerHostname']}-{node['NodeID'][:6]}"
            found.append((node["NodeID"], name, node["NodeManagerAddress"], int(room)))
    return found


def check_versions(node: str, theirs: Mapping[str, str], ours: Mapping[str, str]) -> None:
    """Refuse a node that would play by other rules.

    Raises:
        ClusterUnavailable: something is of another version there.
    """
    other = [
        f"{what} {theirs.get(what)} (here {version})" for what, version in ours.items() if theirs.get(what) != version
    ]
    if other:
        raise ClusterUnavailable(
            f"node {node} has {', '.join(other)}: install the same versions on all nodes and restart Ray there"
        )


def _slot(instance_id: str) -> str:
    """The sandbox that an instance is of."""
    return instance_id.rpartition(".")[0]
