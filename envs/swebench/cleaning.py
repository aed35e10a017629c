"""Images of instances without their future: a copy of each in which the history ends at the base commit.

Published images may hold what came later, the fix among it: in branches, tags, remotes, reflogs, unreachable objects.
A copy is made once for each image and kept under a tag of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from typing import Any

import docker
from docker.errors import DockerException, NotFound
from docker.types import LogConfig

from rocknroll.envs.swebench.config import PlaceConfig
from rocknroll.envs.swebench.images import image_names
from rocknroll.envs.swebench.instance import Instance, RowError
from rocknroll.sandbox.errors import ImageNotFound
from rocknroll.sandbox.runtimes.docker_daemon import Daemon
from rocknroll.sandbox.runtimes.docker_image import snapshot

REPOSITORY = "rocknroll-swebench"
TIMEOUT_S = 1800
_ELSEWHERE = 65
_SCRIPT = """\
set -e
cd /testbed || exit 65
git config --global --add safe.directory /testbed
git cat-file -e "$BASE^{commit}" || exit 65
# The official builder puts a commit of its own on top, with what the installation changed.
if [ "$(git rev-parse HEAD)" != "$(git rev-parse "$BASE")" ] \\
  && ! { [ "$(git log -1 --format=%s)" = SWE-bench ] && [ "$(git rev-parse HEAD^)" = "$(git rev-parse "$BASE")" ]; }
then git checkout -q -f --detach "$BASE"; fi
git checkout -q --detach HEAD
git remote | while read -r name; do git remote remove "$name"; done
git for-each-ref --format='delete %(refname)' | git update-ref --stdin
rm -rf .git/logs .git/FETCH_HEAD .git/ORIG_HEAD .git/MERGE_HEAD .git/refs/stash .git/worktrees
git checkout -q -b main
git reflog expire --expire=now --all
git repack -a -d -q
rm -f .git/objects/info/alternates
git -c gc.pruneExpire=now gc -q --prune=now
"""


async def cleaned_image(instance: Instance, config: PlaceConfig) -> str:
    """Tag of the cleaned copy of an instance's image, made if need be.

    Raises:
        ImageNotFound: the image is not here, nor to be had. RowError: it does not have the base commit.
        RuntimeUnavailable: there is no daemon.
    """
    daemon = Daemon()
    try:
        return await daemon.call(_cleaned, instance, config)
    finally:
        await asyncio.to_thread(daemon.close)


def _cleaned(client: docker.APIClient, instance: Instance, config: PlaceConfig) -> str:
    name, image = _find(client, instance, config)
    key = hashlib.sha256("\0".join([image["Id"], instance.base_commit, _SCRIPT]).encode()).hexdigest()[:16]
    tag = f"{REPOSITORY}:{key}"
    try:
        client.inspect_image(tag)
        return tag
    except NotFound:
        pass
    made = client.create_container(
        name,
        entrypoint=["sh", "-c", _SCRIPT],
        user="0:0",
        environment={"BASE": instance.base_commit},
        host_config=client.create_host_config(network_mode="none", log_config=LogConfig(type="json-file")),
        network_disabled=True,
        name=f"{REPOSITORY}-{secrets.token_hex(6)}",
    )["Id"]
    try:
        client.start(made)
        code = int(client.wait(made, timeout=TIMEOUT_S)["StatusCode"])
        if code:
            said = client.logs(made, tail=20).decode(errors="replace").strip()
            what = "has no /testbed with its base_commit" if code == _ELSEWHERE else "cannot be cleaned"
            raise RowError(f"its image {name} {what}: {said}")
        snapshot(client, made, tag)
    finally:
        client.remove_container(made, force=True, v=True)
    return tag


def _find(client: docker.APIClient, instance: Instance, config: PlaceConfig) -> tuple[str, Any]:
    names = image_names(instance, config.namespace)
    for name in names:
        try:
            return name, client.inspect_image(name)
        except NotFound:
            continue
    if config.pull:
        for name in names:
            try:
                client.pull(name)
                return name, client.inspect_image(name)
            except DockerException as error:
                said = str(error)
        raise ImageNotFound(f"the image {names[0]} could not be fetched: {said}")
    raise ImageNotFound(f"the image {names[0]} is not on this machine: `docker pull {names[0]}`, or pull: true")
