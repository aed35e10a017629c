"""Which accelerator is whose: the devices of the learner's ranks and of the engines. Pure.

Devices are counted through all nodes: device d is number d % gpus_per_node of node d // gpus_per_node.
"""

from __future__ import annotations

from collections.abc import Mapping

from rocknroll.trainer.cluster_section import ClusterSection, device_count, named_devices
from rocknroll.trainer.errors import RecipeError

ROLES = ("learner", "engine")
"""Roles that compute with a model, in the order in which they are given devices."""


def assign(cluster: ClusterSection) -> Mapping[str, tuple[int, ...]]:
    """The devices of each role that has some, by number.

    Named devices are taken as they are; a count gets the lowest that nobody has.

    Raises:
        RecipeError: a device is not there, there are too few, or two roles share some of their devices and not all.
    """
    wanted = {role: getattr(cluster.devices, role) for role in ROLES}
    there = cluster.nodes * cluster.gpus_per_node
    found = {role: named_devices(given) for role, given in wanted.items() if isinstance(given, str)}
    for role, devices in found.items():
        if missing := [device for device in devices if device >= there]:
            raise RecipeError(
                f"`cluster.devices.{role}` names {_listed(missing)}, and there {_are(there)}"
                f" ({cluster.nodes} × `cluster.gpus_per_node` {cluster.gpus_per_node}): name devices below {there}, or"
                " set `cluster.nodes` and `cluster.gpus_per_node` to what there is"
            )
    for role, given in wanted.items():
        if isinstance(given, int):
            taken = {device for devices in found.values() for device in devices}
            free = [device for device in range(there) if device not in taken]
            if len(free) < given:
                raise RecipeError(_too_few(cluster, role, given, len(free)))
            found[role] = tuple(free[:given])
    shared = set(found.get("learner", ())) & set(found.get("engine", ()))
    if shared and set(found["learner"]) != set(found["engine"]):
        raise RecipeError(
            f"`cluster.devices`: learner and engine share {_listed(sorted(shared))} and not all of theirs, so some"
            " ranks would be slower than the others, which wait for them: give both the same devices, or each its own"
        )
    return {role: found[role] for role in ROLES if role in found}


def colocated(assigned: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether learner and engines share their devices."""
    return bool(set(assigned.get("learner", ())) & set(assigned.get("engine", ())))


def _too_few(cluster: ClusterSection, role: str, wanted: int, free: int) -> str:
    asked = ", ".join(f"{name} {device_count(getattr(cluster.devices, name))}" for name in ROLES)
    there = cluster.nodes * cluster.gpus_per_node
    return (
        f"`cluster.devices.{role}` asks for {wanted} devices and {free} {'is' if free == 1 else 'are'} free: the roles"
        f" ask for {asked}, and there {_are(there)} ({cluster.nodes} × `cluster.gpus_per_node`"
        f" {cluster.gpus_per_node}). {wanted - free} more would do; or give both roles the same devices by name, as in"
        f" `0-{max(0, there - 1)}`"
    )


def _are(count: int) -> str:
    return "is 1 device" if count == 1 else f"are {count} devices"


def _listed(devices: list[int]) -> str:
    return f"device{'s' * (len(devices) > 1)} {', '.join(map(str, devices))}"
