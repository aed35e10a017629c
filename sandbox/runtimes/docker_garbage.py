"""What dead fleets left in Docker, for `rock gc`: found by label and owner, removed only when told.

A container is garbage when the process that looks after it (its `owner` file; else its label) is dead. A fleet that
adopted it wrote itself into that file. Owners in another PID namespace cannot be judged from here, so theirs stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import docker

from rocknroll.sandbox import owner as processes
from rocknroll.sandbox.runtimes.docker_folder import InstanceFolder, remove_if_empty
from rocknroll.sandbox.runtimes.docker_instance import remove_container
from rocknroll.sandbox.runtimes.docker_options import FLEET, FOLDER, INSTANCE, NAMESPACE, OWNER


@dataclass(frozen=True)
class Garbage:
    """A container whose fleet is gone."""

    container: str
    """Its name."""
    fleet: str
    instance: str
    state: str
    """Docker's word: `running`, `exited`, …"""
    owner: str
    """`pid:start time` of the dead process."""
    folder: Path
    """What it has on this machine."""


def garbage(client: docker.APIClient) -> list[Garbage]:
    """Containers of dead fleets, of any fleet. Removes nothing."""
    here = str(Path("/proc/self/ns/pid").readlink())
    found = []
    for each in client.containers(all=True, filters={"label": [FLEET, INSTANCE, OWNER, FOLDER]}):
        labels, name = each["Labels"], str(each["Names"][0]).lstrip("/")
        # An image may carry our labels; the name is given by a fleet alone.
        if not labels[FLEET] or not name.startswith(f"rock-{labels[FLEET]}-"):
            continue
        folder = Path(labels[FOLDER])
        if folder.name != name.rpartition("-")[2] or not folder.parent.name.endswith(f"-{labels[FLEET]}"):
            continue
        owner = InstanceFolder(folder).owner() or labels[OWNER]
        if labels.get(NAMESPACE) == here and not processes.is_alive(owner):
            found.append(Garbage(name, labels[FLEET], labels[INSTANCE], each["State"], owner, folder))
    return found


def remove(client: docker.APIClient, found: Iterable[Garbage]) -> None:
    """Remove containers that `garbage` found, with their folders. One that a fleet adopted since stays."""
    still = {each.container for each in garbage(client)}
    for each in found:
        if each.container in still:
            remove_container(client, each.container)
            InstanceFolder(each.folder).remove()
            remove_if_empty(each.folder.parent)
